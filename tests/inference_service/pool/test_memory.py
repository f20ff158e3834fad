"""Models are promised memory, K and V of their running turns as arrays in it; and a pool is checked."""

import pytest

from agentmem.kv.hints import TurnHints
from agentmem.kv.ledger import Ledger, Version
from agentmem.validation import AgentKey
from inference_service.engine.geometry import Geometry
from inference_service.pool.admission import MemoryRequest
from inference_service.pool.hot import HotState
from inference_service.pool.kv import Space, Table
from inference_service.pool.memory import Budget, ModelMemory, Sizes

from .test_sizing import GEMMA_12B

TOKEN = 8_192
"""Bytes of a token of a layer in 16 bits: 8 heads, 256 wide, K and V."""


def memory(geometry: Geometry = GEMMA_12B, limit: int = 1 << 30, *, arrays: bool = True) -> ModelMemory:
    return ModelMemory(geometry, Sizes(Space(40, 12), limit), TurnHints(), arrays=arrays)


def test_spare_is_what_is_there_less_what_was_promised() -> None:
    there = 100
    budget = Budget(lambda: there)
    assert budget.spare() == 100
    growing = [10]
    budget.promise("model", lambda: growing[0])
    with budget.promised(50):
        assert budget.spare() == 40
        growing[0] = 20
        assert budget.spare() == 30
    assert budget.spare() == 80
    there = 5
    assert budget.spare() == -15, "others have taken what was promised"
    budget.withdraw("model")
    budget.withdraw("model")
    assert budget.spare() == 5


def test_arrays_are_of_all_tokens_and_of_windows_no_more_than_they_hold() -> None:
    for tokens, window in ((1000, 1000), (1536, 1536), (1537, 1536), (100_000, 1536)):
        assert GEMMA_12B.array_bytes(tokens) == TOKEN * (8 * tokens + 40 * window)


async def test_arrays_of_what_is_reserved_are_promised() -> None:
    made = memory(limit=2 * GEMMA_12B.array_bytes(1000))
    opened = made.promised_bytes
    assert opened == made.pool.open_bytes
    requests = [MemoryRequest(AgentKey("n", name, "m"), (), 1000) for name in "ab"]
    rooms = [await made.admission.reserve(request, 0) for request in requests]
    assert made.promised_bytes == made.pool.open_bytes + 2 * GEMMA_12B.array_bytes(1000)
    for room in rooms:
        made.admission.release(room)
    assert made.promised_bytes == made.pool.open_bytes
    made.check_integrity()
    assert not made.pool.broken.is_set()


def test_what_an_evicted_agent_frees_is_told_in_bytes() -> None:
    made, key = memory(), AgentKey("n", "a", "m")
    made.pool.pieces.open()
    told: list[bool] = []
    made.evicted = lambda: told.append(True)
    blocks, pieces = made.pool.full.allocate(3), made.pool.pieces.allocate(6)
    captured = made.pool.publish_checkpoint(b"captured", Table(256, (), 1280, tuple(pieces[:2])))
    made.pool.acquire(captured)
    made.hot.put(key, HotState(Version("u", 1), Ledger(), Table(700, tuple(blocks), 1280, tuple(pieces))))
    assert made.evict(key) == 3 * 256 * GEMMA_12B.bytes_per_token + 4 * GEMMA_12B.piece_bytes
    assert made.evict(key) == 0
    assert told == [True]
    made.in_flight = lambda: [captured]
    made.check_integrity()
    assert not made.pool.broken.is_set()


def test_the_check_is_of_idle_agents_and_what_is_in_flight(caplog: pytest.LogCaptureFixture) -> None:
    made = memory()
    table = Table(1, tuple(made.pool.full.allocate(1)))
    made.in_flight = lambda: [table]
    made.check_integrity()
    assert not made.pool.broken.is_set()
    made.in_flight = list
    made.check_integrity()
    assert made.pool.broken.is_set()
    assert "does not add up" in caplog.text


def test_a_release_too_often_is_said_and_does_not_stop_the_cleaning_up(caplog: pytest.LogCaptureFixture) -> None:
    made = memory()
    table = Table(1, tuple(made.pool.full.allocate(1)))
    for _ in range(2):
        made.pool.release(table)
    assert made.pool.broken.is_set()
    assert "once too often" in caplog.text


async def test_nothing_is_checked_while_somebody_has_room() -> None:
    made = memory()
    room = await made.admission.reserve(MemoryRequest(AgentKey("n", "a", "m"), (), 1), seconds=0)
    made.check_integrity()
    made.admission.release(room)
    made.check_integrity()
    assert not made.pool.broken.is_set()
