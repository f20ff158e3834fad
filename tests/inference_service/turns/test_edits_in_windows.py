"""Edits within the last 256 tokens of a conversation, or of its last prompt: nothing before them is computed again."""

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from agentmem.v1 import types_pb2
from agentmem.validation import AgentKey
from inference_service.engine.paged.sequence import SLACK, WindowTable
from inference_service.memory.checkpoints import capture_positions
from inference_service.turns.restored import Restored
from inference_service.turns.restoring import kv_lookup
from tests.inference_service.turns.world import TOLERANCE, Worker, difference, prompt, working
from tests.oracle import Oracle
from tests.tiny_models import write_gemma3, write_gpt_oss

KEY = AgentKey("n", "a", "m")
OTHER = prompt(40, 1)
EDITS = (1, 17, 64, 100, 200, 255, 256)


async def left_at(worker: Worker, ledger: list[int], at: int, key: AgentKey = KEY) -> Restored:
    """Return the KV that a turn would find with the first `at` tokens of a ledger and then others."""
    _, known = worker.store.ledgers.get(key, (None, None))
    sequence = [*ledger[:at], *OTHER]
    assert known is not None and known.token_ids.tolist() == ledger
    lookup = kv_lookup("n", worker.model, known, at, sequence, capture_positions((), len(sequence)))
    return await worker.runner.restorer.probe(key, worker.model, lookup)


async def check_offsets(worker: Worker, ledger: list[int], end: int, backs: Iterable[int]) -> None:
    """Hot and from files, so many tokens before `end`."""
    for tier in ("hot", "warm"):
        found = {end - back: (await left_at(worker, ledger, end - back)).tokens for back in backs}
        assert {at: tokens for at, tokens in found.items() if tokens != at} == {}, tier
        worker.model.memory.hot.drop(KEY)


async def check(window: int, tokens: int, answer: int, backs: Iterable[int], tmp_path: Path) -> None:
    """An agent of one turn: before the end of its answer, and before that of its prompt."""
    async with working(write_gemma3(tmp_path / "m", window=window), tmp_path, blocks=12) as worker:
        ids = prompt(tokens)
        ledger = [*ids, *(await worker.turn("a", ids, answer)).token_ids]
        await worker.idle()
        await check_offsets(worker, ledger, len(ledger), backs)
        await check_offsets(worker, ledger, len(ids), backs)


@pytest.mark.parametrize(("window", "tokens", "answer"), [(64, 300, 9), (512, 800, 1)])
async def test_edits_near_the_end(window: int, tokens: int, answer: int, tmp_path: Path) -> None:
    await check(window, tokens, answer, EDITS, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("window", "tokens", "answer"), [(64, 300, 9), (512, 800, 1), (300, 1100, 9), (512, 1030, 300), (16, 2100, 270)]
)
async def test_an_edit_at_each_of_the_last_tokens(window: int, tokens: int, answer: int, tmp_path: Path) -> None:
    """The prompt is edited, too, if the answer is longer than a checkpoint reaches back."""
    await check(window, tokens, answer, range(1, SLACK + 1), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("write", [write_gemma3, write_gpt_oss], ids=["gemma3", "gpt_oss"])
@pytest.mark.parametrize("window", [64, 512])
async def test_what_is_gone_on_with_is_right(write: Callable[..., Path], window: int, tmp_path: Path) -> None:
    directory = write(tmp_path / "m", window=window)
    oracle = Oracle(directory)
    async with working(directory, tmp_path, blocks=24) as worker:
        for number, back in enumerate(EDITS):
            ids = prompt(window + 420, 10 + number)
            ledger = [*ids, *(await worker.turn("a", ids)).token_ids]
            await worker.at_rest()
            if number % 2:
                worker.model.memory.hot.drop(KEY)
            edited = [*ledger[: len(ledger) - back], *OTHER]
            said = await worker.turn("a", edited, 8)
            assert said.reused == len(ledger) - back
            assert difference(oracle, edited, said) < TOLERANCE
            await worker.at_rest()


@pytest.mark.slow
async def test_a_cut_to_the_window_is_a_fault_that_this_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WindowTable, "kept_from", lambda self, length: max(self.first, length - self.window))
    async with working(write_gemma3(tmp_path / "m", window=512), tmp_path, blocks=12) as worker:
        ids = prompt(800)
        ledger = [*ids, *(await worker.turn("a", ids)).token_ids]
        await worker.idle()
        monkeypatch.undo()
        with pytest.raises(AssertionError, match="hot"):
            await check_offsets(worker, ledger, len(ledger), EDITS)


async def test_another_agents_beginning_without_a_checkpoint_is_not_trimmable(tmp_path: Path) -> None:
    """Its blocks are there; only the windows are not."""
    async with working(write_gemma3(tmp_path / "m", window=64), tmp_path, blocks=12) as worker:
        ids = prompt(700)
        await worker.turn("a", ids)
        await worker.idle()
        other = await worker.turn("b", [*ids[:460], *OTHER])
        assert (other.reused, other.started.cache.miss_reason) == (0, types_pb2.MISS_REASON_NOT_TRIMMABLE)
        unknown = await worker.turn("c", prompt(100, 9))
        assert unknown.started.cache.miss_reason == types_pb2.MISS_REASON_ABSENT
