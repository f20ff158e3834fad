"""Checkpoints on the way of a long prompt: where they are captured, and that the model goes on right from each."""

from collections.abc import Sequence as Items
from pathlib import Path

import numpy as np
import pytest

from inference_service.engine.paged.sequence import Sequence
from inference_service.memory.spacing import STEP, periodic_positions
from inference_service.models.loaded import LoadedModel
from tests.inference_service.directories import written_by
from tests.inference_service.engine.batch_turns import Turn, begin, difference, new_kv, run
from tests.oracle import Oracle
from tests.tiny_hybrids import write_baichuan_m1, write_qwen3_next
from tests.tiny_models import write_gemma3

pytestmark = pytest.mark.sampled(3)

CONTEXT, PROMPT = 8192, 4600
WRITERS = [write_qwen3_next, write_baichuan_m1, write_gemma3]


directory = written_by(WRITERS, context=CONTEXT)


@pytest.fixture(scope="module")
def prompt() -> list[int]:
    return [int(token) for token in np.random.default_rng(0).integers(3, 300, PROMPT)]


def computed(model: LoadedModel, sequence: Items[int], warm: Sequence | None = None) -> Turn:
    """A prompt that is computed, with the checkpoints that a turn keeps of it."""
    turn = begin(
        model, sequence, None, warm=warm, checkpoints=periodic_positions(model.checkpoint_distance, len(sequence))
    )
    run(model)
    assert turn.whole
    return turn


@pytest.mark.slow
def test_a_long_prompt_leaves_them_and_goes_on_right_from_each(
    model: LoadedModel, directory: Path, prompt: list[int]
) -> None:
    assert model.checkpoint_distance == STEP
    turn, oracle = computed(model, prompt), Oracle(directory)
    job = turn.job
    assert list(job.captured) == [2048, 4096]
    assert len(job.chunks) == len({chunk.position for chunk in job.chunks})
    ends = {chunk.position + chunk.tokens for chunk in job.chunks}
    assert {2048, 4096} <= ends
    for at, checkpoint in job.captured.items():
        edited = [*prompt[:at], *reversed(prompt[at : at + 90])]
        make = new_kv(model, len(edited) + 13, turn.kv, reused=at, checkpoint=checkpoint)
        other = begin(model, edited, 12, make=make)
        run(model)
        assert other.job.chunks[0].position == at
        assert len(set(other.said)) > 5, "an output that does not vary proves nothing"
        assert difference(oracle, other) < 1e-3
