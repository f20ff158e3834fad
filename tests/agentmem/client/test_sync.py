from __future__ import annotations

import asyncio
import errno
import inspect
import io
import signal
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from agentmem import Agent, AsyncAgent, AsyncClient, AsyncStream, Client, Stream, Text, errors
from agentmem.client.blocking import LoopThread, _iterate
from agentmem.client.models import AsyncModels
from agentmem.client.sync import Models, Workflows
from agentmem.client.workflows import AsyncWorkflows
from tests.gateway.scripted import ScriptedWorker

PAIRS = (
    (Client, AsyncClient),
    (Agent, AsyncAgent),
    (Stream, AsyncStream),
    (Models, AsyncModels),
    (Workflows, AsyncWorkflows),
)
INNER = {AsyncClient: {"default_model"}, AsyncWorkflows: {"raw_events"}}


def public(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_") and callable(getattr(kind, name))}


@pytest.mark.parametrize(("blocking", "original"), PAIRS)
def test_both_have_the_same_methods(blocking: type, original: type) -> None:
    names = public(original) - INNER.get(original, set())
    assert public(blocking) == names
    for name in names:
        method, same = getattr(original, name), getattr(blocking, name)
        assert inspect.signature(same).parameters.keys() == inspect.signature(method).parameters.keys()
        assert same.__doc__
        assert method.__doc__


async def test_all_of_a_conversation(address: str, worker: ScriptedWorker) -> None:
    def talk() -> None:
        with Client(address) as client:
            assert repr(client) == f"Client('{address}')"
            marco = client.agent("marco")
            assert marco.ask("Hi").text == "Hello 🌍"
            stream = marco.stream("Hi")
            assert "".join(stream) == stream.answer.text == "Hello 🌍"
            assert Text("Hel") in list(marco.stream("Hi").events())
            assert isinstance(marco.fork("ada"), Agent)
            assert [model.name for model in client.models.list()] == ["demo", "org/large"]
            assert [step.stage for step in client.models.loading("demo")] == ["ready"]
            assert client.models.load("demo").name == "demo"
            with pytest.raises(errors.NotFound):
                client.models.get("none")
        for call in (lambda: marco.ask("Hi"), lambda: list(client.agents()), client.close):
            if call == client.close:
                client.close()
                continue
            with pytest.raises(RuntimeError, match="closed"):
                call()

    await asyncio.to_thread(talk)


async def test_threads_share_a_client(address: str, worker: ScriptedWorker) -> None:
    def talk() -> list[str]:
        with Client(address) as client, ThreadPoolExecutor(8) as pool:
            answers = pool.map(lambda number: client.agent(f"agent-{number % 3}").ask("Hi").text, range(40))
            return list(answers)

    assert await asyncio.to_thread(talk) == ["Hello 🌍"] * 40
    assert len({request.request_id for request in worker.generated}) == 40


def test_ctrl_c_while_an_item_is_waited_for() -> None:
    began, ended = threading.Event(), threading.Event()

    async def items() -> AsyncIterator[int]:
        try:
            began.set()
            waiting = asyncio.create_task(asyncio.sleep(60))
            try:
                await waiting
            finally:  # as gRPC does, it takes a moment to end
                await asyncio.sleep(0.05)
            yield 1
        finally:
            ended.set()

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    def press() -> None:
        began.wait()
        signal.pthread_kill(main, signal.SIGUSR1)

    loop, before, main = LoopThread(), signal.signal(signal.SIGUSR1, interrupt), threading.get_ident()
    presser = threading.Thread(target=press)
    try:
        presser.start()
        with pytest.raises(KeyboardInterrupt):
            list(_iterate(items(), loop))
    finally:
        presser.join()
        signal.signal(signal.SIGUSR1, before)
        loop.close()
    assert ended.is_set()


@pytest.mark.parametrize("iterates", [False, True])
def test_ctrl_c_while_a_call_is_handed_over(iterates: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call has begun, and its caller has no future of it yet."""
    began, cancelled = threading.Event(), threading.Event()
    begin = LoopThread._begin

    async def answer() -> int:
        try:
            began.set()
            return await asyncio.sleep(60, 1)
        finally:
            cancelled.set()

    async def items() -> AsyncIterator[int]:
        yield await answer()

    def interrupted(loop: LoopThread, coroutine: Any) -> None:
        monkeypatch.undo()
        begin(loop, coroutine)
        assert began.wait(10)
        raise KeyboardInterrupt

    loop = LoopThread()
    try:
        monkeypatch.setattr(LoopThread, "_begin", interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(_iterate(items(), loop)) if iterates else loop.run(answer())
        assert cancelled.wait(10)
    finally:
        loop.close()


class Unreadable(io.RawIOBase):
    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        raise OSError(errno.EIO, "Input/output error")


async def test_a_file_that_cannot_be_read_is_that_error(address: str, worker: ScriptedWorker) -> None:
    with pytest.raises(OSError, match="Input/output"):
        await asyncio.to_thread(lambda: Client(address).import_agent(Unreadable()))  # type: ignore[arg-type]
