"""The engine as a contestant: agents at rest go on as if they had never rested, and give back all that they had."""

import gc
from collections.abc import Callable, Sequence
from pathlib import Path

import mlx.core as mx
import mlx_lm
import pytest

from benchmarks.contestants import Ours, Row
from benchmarks.places import Place
from inference_service.engine.paged.sequence import Sequence as KVSequence
from tests.tiny_hybrids import write_falcon_h1, write_qwen3_next
from tests.tiny_models import write_gemma3, write_qwen3

TOKENS, SAID = 300, 12


def contestant(path: Path) -> Ours:
    model = mlx_lm.load(str(path))[0]
    model.set_dtype(mx.float32)
    return Ours(model)


def prompt(tokens: int) -> list[int]:
    return [1 + 7 * at % 29 for at in range(tokens)]


def said(ours: Ours, tokens: Sequence[int], begin: Callable[[], KVSequence], reused: int = 0) -> list[int]:
    found: list[int] = []
    turn = ours.job(tokens, begin, SAID, lambda event: found.append(event.token_id), reused)
    while not turn.future.done():
        ours.engine.step()
    turn.future.result()
    return found


def from_nothing(ours: Ours, tokens: Sequence[int]) -> list[int]:
    place = ours.places.take(len(tokens) + SAID)
    return said(ours, tokens, lambda: ours.store.sequence(place.blocks, place.pieces))


def on_from(ours: Ours, row: Row, way: tuple[Place, Callable[[], KVSequence]]) -> list[int]:
    _place, begin = way  # which is the turn's as long as this is
    return said(ours, row.tokens, begin, row.length)


@pytest.mark.slow
@pytest.mark.parametrize("write", [write_qwen3, write_gemma3, write_qwen3_next, write_falcon_h1])
def test_agents_at_rest_go_on_as_if_they_had_not_rested(write: Callable[[Path], Path], tmp_path: Path) -> None:
    ours = contestant(write(tmp_path / "model"))
    row = ours.prefill(prompt(TOKENS)).row
    wanted = from_nothing(ours, row.tokens)
    for _ in range(2):  # It is at rest still.
        assert on_from(ours, row, ours.going_on(row, len(row.tokens) + SAID)) == wanted
        copied = ours.copied(row, len(row.tokens) + SAID)
        assert said(ours, copied.tokens, ours.here(copied), copied.length) == wanted
    assert ours.resume(row) > 0
    assert len(ours.restored(row, tmp_path, 2)) == 3
    assert on_from(ours, row, ours.going_on(row, len(row.tokens) + SAID)) == wanted


def test_agents_that_generate_together_share_nothing(tmp_path: Path) -> None:
    ours = contestant(write_gemma3(tmp_path / "model"))
    row = ours.prefill(prompt(TOKENS)).row
    copies = [ours.copied(row, TOKENS + 20) for _ in range(2)]
    blocks = [block for each in (row, *copies) for block in each.place.blocks]
    assert len(set(blocks)) == len(blocks)
    assert all(each.checkpoint is not None for each in (row, *copies))
    pieces = [piece for each in (row, *copies) if each.checkpoint for piece in each.checkpoint.pieces]
    assert len(set(pieces)) == len(pieces)


def test_places_are_given_back(tmp_path: Path) -> None:
    ours = contestant(write_qwen3(tmp_path / "model"))
    row = ours.prefill(prompt(TOKENS)).row
    assert row.nbytes == 2 * ours.store.full.layout.nbytes
    running = ours.running([row, row.shortened(16)], 8)
    for _ in range(3):
        running.step()
    del running
    gc.collect()
    used = ours.store.nbytes
    ours.places.shrink()
    assert ours.store.nbytes == row.nbytes < used
    del row
    gc.collect()
    ours.places.shrink()
    assert ours.store.nbytes == 0
