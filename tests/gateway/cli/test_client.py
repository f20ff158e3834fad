from __future__ import annotations

import io
import sys

import click
import grpc
import pytest
from grpc_status import rpc_status

from agentmem import errors
from gateway.cli.client import ask, retrying, write_json


def failed(error: errors.AgentmemError) -> grpc.aio.AioRpcError:
    status = rpc_status.to_status(error.to_status())
    metadata = grpc.aio.Metadata(*status.trailing_metadata)
    return grpc.aio.AioRpcError(status.code, grpc.aio.Metadata(), metadata, status.details, None)


class Attempts:
    """Fails with one error after the other, then succeeds; remembers the waits."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.waits: list[float] = []

    async def __call__(self) -> str:
        if self.failures:
            raise self.failures.pop(0)
        return "done"

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)


async def test_waits_as_long_as_it_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    attempts = Attempts(failed(errors.Unavailable("loading", 2.5)), failed(errors.Unavailable("loading", 600)))
    assert await retrying(attempts, sleep=attempts.sleep) == "done"
    assert attempts.waits == [2.5, 10.0]
    assert capsys.readouterr() == ("", "… waiting: loading\n")


NO_GATEWAY = grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), None, None)


@pytest.mark.parametrize(
    "error",
    [failed(errors.NotFound("agent", "a")), failed(errors.ResourceExhausted("full")), NO_GATEWAY],
    ids=["not-found", "full", "no-gateway"],
)
async def test_does_not_try_again(error: grpc.aio.AioRpcError) -> None:
    attempts = Attempts(error, error)
    with pytest.raises(grpc.aio.AioRpcError):
        await retrying(attempts, pytest.fail, sleep=attempts.sleep)
    assert attempts.waits == []


async def test_outlasts_an_outage_and_tells_of_it_once() -> None:
    loading = [failed(errors.Unavailable("loading", 2.5)) for _ in range(20)]
    attempts, told = Attempts(NO_GATEWAY, *loading), []
    done = await retrying(
        attempts, told.append, gateway_too=True, sleep=attempts.sleep, clock=lambda: sum(attempts.waits)
    )
    assert (done, told) == ("done", ["no gateway answers"])
    assert attempts.waits == [1.0, *[2.5] * 20]


async def test_an_outage_that_does_not_end() -> None:
    attempts = Attempts(*(failed(errors.Unavailable("loading", 7)) for _ in range(100)))
    with pytest.raises(grpc.aio.AioRpcError):
        await retrying(
            attempts, lambda _: None, gateway_too=True, sleep=attempts.sleep, clock=lambda: sum(attempts.waits)
        )
    assert sum(attempts.waits) == 56


def test_one_clear_line() -> None:
    async def refused(_: grpc.aio.Channel) -> None:
        raise failed(errors.NotFound("agent", "bob"))

    with pytest.raises(click.ClickException, match=r"^agent 'bob' does not exist$"):
        ask("127.0.0.1:1", refused)


@pytest.mark.parametrize(("encoding", "told"), [("utf-8", '["漢"]'), ("iso-8859-1", '["\\u6f22"]')])
def test_json_says_all_letters_in_any_locale(encoding: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding, write_through=True))
    write_json(["漢"])
    assert written.getvalue().decode(encoding) == f"{told}\n"
