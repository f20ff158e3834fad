from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from agentmem import AsyncClient, errors

Call = Callable[[AsyncClient, float], Awaitable[object]]
CALLS: dict[str, Call] = {
    "ask": lambda client, seconds: client.agent("marco").ask("Hi", timeout=seconds),
    "stream": lambda client, seconds: anext(aiter(client.agent("marco").stream("Hi", timeout=seconds))),
    "tell": lambda client, seconds: client.agent("marco").tell("Hi", timeout=seconds),
    "probe": lambda client, seconds: client.agent("marco").probe("Hi", timeout=seconds),
    "count": lambda client, seconds: client.agent("marco").count_tokens("Hi", timeout=seconds),
    "model": lambda client, seconds: client.agent("marco").model(timeout=seconds),
    "info": lambda client, seconds: client.agent("marco").info(timeout=seconds),
    "turns": lambda client, seconds: anext(client.agent("marco").turns(timeout=seconds)),
    "snapshots": lambda client, seconds: anext(client.agent("marco").snapshots(timeout=seconds)),
    "delete-snapshot": lambda client, seconds: client.agent("marco").delete_snapshot("one", timeout=seconds),
    "fork": lambda client, seconds: client.agent("marco").fork("ada", timeout=seconds),
    "trim": lambda client, seconds: client.agent("marco").trim(20, timeout=seconds),
    "delete": lambda client, seconds: client.agent("marco").delete(timeout=seconds),
    "count-chat": lambda client, seconds: client.count_tokens("Hi", timeout=seconds),
    "hint": lambda client, seconds: client.hint({"marco": 1}, timeout=seconds),
}


@pytest.fixture
def silent() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_no_call_outlives_its_deadline(silent: str, call: Call) -> None:
    async with AsyncClient(silent) as client:
        with pytest.raises(errors.DeadlineExceeded, match=r"not done within 0\.2 s"):
            await call(client, 0.2)


async def test_an_export_neither(silent: str, tmp_path: Path) -> None:
    async with AsyncClient(silent) as client:
        with pytest.raises(errors.DeadlineExceeded, match=r"not done within 0\.2 s"):
            await client.agent("marco").export(tmp_path / "file", timeout=0.2)
    assert list(tmp_path.iterdir()) == []


async def test_a_call_may_have_longer_than_its_client(silent: str) -> None:
    async with AsyncClient(silent, timeout=0.01) as client:
        with pytest.raises(errors.DeadlineExceeded, match=r"not done within 0\.2 s"):
            await client.agent("marco").ask("Hi", timeout=0.2)
