"""Windows that are captured during prefill: what a hybrid model resumes from."""

from collections.abc import Sequence as Items

import pytest

from inference_service.engine import prompts
from inference_service.engine.paged.sequence import SLACK, Checkpoint
from inference_service.models.loaded import LoadedModel
from tests.inference_service.directories import written_by
from tests.inference_service.engine.batch_turns import Turn, begin, difference, run
from tests.oracle import Oracle
from tests.tiny_models import write_gemma3, write_gpt_oss

TOLERANCE = 1e-3
CHECKPOINTS = (40, 64, 200, 450)
directory = written_by([write_gemma3, write_gpt_oss])


@pytest.fixture(scope="module")
def prompt(model: LoadedModel) -> list[int]:
    text = "The boat by the sea, ü€😀 nobody knows. Who told you that? The house is green. "
    return model.tokenizer.encode(text * 20, parse_special=False)[:470]


def over(model: LoadedModel, prompt: list[int], checkpoints: Items[int] = (), tokens: int | None = None) -> Turn:
    """A prefill, or a turn, that is over."""
    turn = begin(model, prompt, tokens, checkpoints=checkpoints)
    run(model)
    assert turn.whole
    return turn


def captured(model: LoadedModel, checkpoint: Checkpoint) -> dict[str, bytes]:
    return model.arenas.read_checkpoint(checkpoint)()


@pytest.mark.slow("gpt_oss-100", "gemma3-4096")
@pytest.mark.parametrize("chunk", [100, 4096])
def test_a_window_is_what_a_prefill_up_to_there_leaves(
    model: LoadedModel, prompt: list[int], chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompts, "chunk_tokens", lambda *_: chunk)
    turn = over(model, prompt, CHECKPOINTS, 24)
    assert tuple(turn.job.captured) == CHECKPOINTS
    for at, checkpoint in turn.job.captured.items():
        assert (checkpoint.position, checkpoint.tokens) == (at, min(at, model.geometry.window + SLACK))
        alone = over(model, prompt[:at], [p for p in CHECKPOINTS if p < at])
        wanted = model.arenas.capture(alone.kv)
        assert wanted is not None
        assert captured(model, checkpoint) == captured(model, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("early", [0, 1])
def test_blocks_behind_a_window_are_used_again_and_none_before(
    model: LoadedModel, oracle: Oracle, prompt: list[int], early: int
) -> None:
    pieces, blocks = model.geometry.checkpoint_pieces, set()
    turn = begin(model, prompt[:330], 100, arrays=False)
    while not turn.job.future.done():
        model.engine.step()
        if (kv := turn.job.kv) is not None and kv.window is not None:
            blocks |= set(kv.window.blocks)
            assert len(kv.window.blocks) <= pieces
            if early and kv.length == 395:
                kv.window.blocks[:] = [*kv.window.blocks[1:], kv.window.blocks[0]]
    assert len(blocks) <= 3 * pieces
    assert (difference(oracle, turn) < TOLERANCE) == (not early)


@pytest.mark.slow("gemma3")
def test_what_is_not_computed_is_not_captured(model: LoadedModel, prompt: list[int]) -> None:
    warm = over(model, prompt[:200])
    turn = begin(model, prompt, 24, warm=warm.kv, checkpoints=[0, 100, 200, 300, len(prompt), len(prompt) + 5])
    run(model)
    assert list(turn.job.captured) == [300]
    assert list(over(model, prompt, [len(prompt)]).job.captured) == [len(prompt)], "a prefill comes to the end"
