from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem import retries
from agentmem.errors import AgentmemError, NotFound, Unavailable
from agentmem.retries import Failure, retry, retry_delay


class Server:
    """Fails with each of these, some seconds after it was asked, then answers; on a clock of its own."""

    def __init__(self, *failures: tuple[float, AgentmemError]) -> None:
        self.failures = list(failures)
        self.now = 0.0
        self.waits: list[float] = []

    async def ask(self) -> str:
        if not self.failures:
            return "done"
        seconds, failure = self.failures.pop(0)
        self.now += seconds
        raise failure

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds

    async def answer(self, patience: float, well_after: float = math.inf) -> str:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(retries, "asyncio", SimpleNamespace(sleep=self.sleep))
            patched.setattr(retries, "time", SimpleNamespace(monotonic=lambda: self.now))
            return await retry(self.ask, delay_of, patience, well_after=well_after)


def delay_of(failure: Failure) -> float | None:
    return retry_delay(failure) if isinstance(failure, Unavailable) else None


async def test_waits_as_it_is_told() -> None:
    server = Server((1, Unavailable("starting", 2.5)), (1, Unavailable("loading", 3)))
    assert await server.answer(60) == "done"
    assert server.waits == [2.5, 3]


async def test_what_does_not_pass() -> None:
    server = Server((0, Unavailable("starting")), (0, NotFound("agent", "bob")))
    with pytest.raises(NotFound):
        await server.answer(60)
    assert server.waits == [1]


async def test_an_attempt_that_went_on_for_long_was_ended_by_another_outage() -> None:
    failures = [(0, Unavailable("queued", 1)), (600, Unavailable("killed", 1)), (0, Unavailable("starting", 1))]
    assert await Server(*failures).answer(60, well_after=60) == "done"
    with pytest.raises(Unavailable, match="killed"):
        await Server(*failures).answer(60)


@given(
    st.lists(st.tuples(st.floats(0, 30), st.floats(0, 1000)), min_size=1, max_size=30),
    st.floats(min_value=0, max_value=300),
)
async def test_gives_up_in_time(told: list[tuple[float, float]], patience: float) -> None:
    """Nobody waits for longer than the patience, and what is raised is what happened last."""
    failures = [Unavailable("starting", seconds) for _, seconds in told]
    server = Server(*((seconds, failure) for (seconds, _), failure in zip(told, failures, strict=True)))
    try:
        await server.answer(patience)
    except Unavailable as error:
        last = len(told) - len(server.failures) - 1
        at_last = (failures[last] is error, server.now - told[last][0])
    else:
        at_last = (not server.failures, server.now)
    is_last, asked = at_last
    assert is_last
    assert asked <= told[0][0] + patience + 1e-6
    assert all(0.05 <= wait <= 10 for wait in server.waits)
