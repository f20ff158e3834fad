from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem.errors import ResourceExhausted, Unauthenticated
from gateway.edge.admission import Admission, next_full
from gateway.edge.callers import Caller, CallerLimits


def caller(key_id: str = "k", running: int = 0, per_minute: int = 0) -> Caller:
    return Caller("n", key_id, limits=CallerLimits(running, per_minute))


@given(st.integers(1, 500), st.lists(st.floats(0, 30), min_size=1, max_size=300))
def test_no_stretch_of_time_has_more_than_the_bucket_and_what_flowed_in(per_minute: int, pauses: list[float]) -> None:
    now, full_at, admitted = 1000.0, 0.0, []
    for pause in pauses:
        now += pause
        full_at, wait = next_full(full_at, now, per_minute)
        if not wait:
            admitted.append(now)
            continue
        _, still = next_full(full_at, now + wait, per_minute)
        assert not still  # who waits as told is let in
        assert 0 < wait <= 60 / per_minute + 1e-6
    for first in range(0, len(admitted), 17):
        for last in range(first, len(admitted), 13):
            stretch = admitted[last] - admitted[first]
            assert last - first + 1 <= per_minute * (1 + stretch / 60) + 1e-3


async def test_requests_a_minute() -> None:
    now = 50.0
    admission = Admission(lambda: now)
    who = caller(per_minute=2)
    for _ in range(2):
        async with admission.admitted(who):
            pass
    with pytest.raises(ResourceExhausted) as refused:
        async with admission.admitted(who):
            pytest.fail("let in")
    assert refused.value.retry_after == pytest.approx(30)
    async with admission.admitted(caller("another", per_minute=2)):
        pass
    now += 30
    async with admission.admitted(who):
        pass


async def test_requests_at_once() -> None:
    admission = Admission(lambda: 0.0)
    who = caller(running=1, per_minute=2)
    async with admission.admitted(who):
        for _ in range(5):  # which count as none of the minute's
            with pytest.raises(ResourceExhausted, match="wait for one to end"):
                async with admission.admitted(who):
                    pytest.fail("let in")
        async with admission.admitted(caller("another", running=1)):
            pass
    with pytest.raises(RuntimeError):
        async with admission.admitted(who):
            raise RuntimeError
    with pytest.raises(ResourceExhausted, match="a minute"):
        async with admission.admitted(who):
            pytest.fail("let in")


async def test_a_revoked_caller_is_ended_and_nobody_else() -> None:
    admission = Admission()
    ended: list[str] = []
    both = asyncio.Event()

    async def serve(who: Caller) -> None:
        async with admission.admitted(who):
            ended.append(who.key_id)
            if len(ended) == 2:
                both.set()
            await asyncio.Event().wait()

    revoked, other = (asyncio.create_task(serve(caller(name))) for name in ("revoked", "other"))
    await both.wait()
    assert admission.end(lambda _: True) == 0
    assert admission.end(lambda who: who.key_id != "revoked") == 1
    assert admission.end(lambda who: who.key_id != "revoked") == 0  # once is enough
    with pytest.raises(Unauthenticated, match="revoked"):
        await revoked
    assert not other.done()
    other.cancel()
    with pytest.raises(asyncio.CancelledError):
        await other


async def test_a_timeout_of_the_request_itself_stays_one() -> None:
    with pytest.raises(TimeoutError):
        async with Admission().admitted(caller()):
            raise TimeoutError


async def test_idle_callers_are_forgotten() -> None:
    now = 0.0
    admission = Admission(lambda: now)
    for number in range(5000):
        now += 1
        async with admission.admitted(caller(str(number), per_minute=60)):
            pass
    assert len(admission._usage) < 1100
