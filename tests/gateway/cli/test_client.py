from __future__ import annotations

from collections.abc import Callable

import click
import grpc
import pytest
from grpc_status import rpc_status

from agentmem import errors
from gateway.cli.client import MAX_ATTEMPTS, ask, retrying


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


async def test_waits_as_long_as_it_is_told() -> None:
    attempts = Attempts(failed(errors.Unavailable("loading", 2.5)), failed(errors.Unavailable("loading", 600)))
    assert await retrying(attempts, sleep=attempts.sleep) == "done"
    assert attempts.waits == [2.5, 10.0]


async def test_gives_up() -> None:
    attempts = Attempts(*(failed(errors.Unavailable("loading", 1)) for _ in range(MAX_ATTEMPTS)))
    with pytest.raises(grpc.aio.AioRpcError):
        await retrying(attempts, sleep=attempts.sleep)
    assert len(attempts.waits) == MAX_ATTEMPTS - 1


@pytest.mark.parametrize(
    ("error", "may_retry"),
    [
        (failed(errors.NotFound("agent", "a")), lambda: True),
        (failed(errors.ResourceExhausted("full")), lambda: True),
        (failed(errors.Unavailable("loading")), lambda: False),
        (
            grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), None, None),
            lambda: True,
        ),
    ],
    ids=["not-found", "full", "not-allowed", "no-gateway"],
)
async def test_does_not_try_again(error: grpc.aio.AioRpcError, may_retry: Callable[[], bool]) -> None:
    attempts = Attempts(error)
    with pytest.raises(grpc.aio.AioRpcError):
        await retrying(attempts, may_retry, attempts.sleep)
    assert attempts.waits == []


def test_one_clear_line() -> None:
    async def refused(_: grpc.aio.Channel) -> None:
        raise failed(errors.NotFound("agent", "bob"))

    with pytest.raises(click.ClickException, match=r"^agent 'bob' does not exist$"):
        ask("127.0.0.1:1", refused)
