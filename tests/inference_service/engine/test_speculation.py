"""Rows that compute several tokens in a step: tokens, log-probabilities and packed KV are those of plain steps,
whatever was guessed.
"""

from functools import partial

import pytest

from inference_service.domain import Sampling
from inference_service.engine.speculation import StepCosts
from inference_service.models.loaded import LoadedModel
from tests.inference_service.directories import written_by
from tests.inference_service.engine.batch_rows import write_narrow_gemma3
from tests.inference_service.engine.batch_turns import EXACT, Turn, begin, prompt_of, right, run
from tests.inference_service.engine.foresight import (
    PENALIZED,
    TOKENS,
    WARM,
    both_ways,
    foresee,
    same,
    speculating,
)
from tests.oracle import Oracle
from tests.tiny_hybrids import write_qwen3_next
from tests.tiny_models import write_deepseek2, write_gpt_oss, write_llama, write_phi
from tests.tiny_own_attention import write_deepseek3, write_stablelm
from tests.tiny_states import write_mamba2

pytestmark = pytest.mark.sampled(3)

STEPS = TOKENS + 1
"""Without drafts: the last one computes KV alone."""


directory = written_by(
    [write_llama, write_phi, write_narrow_gemma3, write_gpt_oss, write_deepseek2, write_deepseek3, write_stablelm]
)


@pytest.fixture(autouse=True)
def drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    foresee(monkeypatch)


@pytest.mark.slow(
    "gpt_oss-greedy",
    "stablelm-sampled",
    "deepseek3-greedy",
    "stablelm-greedy",
    "narrow_gemma3-greedy",
)
@pytest.mark.parametrize("sampling", [EXACT, WARM, PENALIZED], ids=["greedy", "sampled", "penalized"])
def test_tokens_and_kv_are_those_of_plain_steps(model: LoadedModel, oracle: Oracle, sampling: Sampling) -> None:
    plain, turn, steps, accepted = both_ways(model, sampling)
    assert steps + accepted == STEPS
    assert accepted > TOKENS / 4
    assert same(model, plain, turn)
    if sampling is EXACT:
        assert right(oracle, turn)
        assert goes_on(model, oracle, turn)


def goes_on(model: LoadedModel, oracle: Oracle, turn: Turn) -> bool:
    """Return whether a next turn that begins with the KV that a turn left is right."""
    prompt = [*turn.job.history, *prompt_of(model, 2, 1)]
    following = begin(model, prompt, 5, warm=turn.kv)
    run(model)
    return right(oracle, following)


@pytest.mark.parametrize("directory", [write_llama, write_narrow_gemma3], ids=["llama", "gemma3"], indirect=True)
def test_what_is_in_blocks_alone_is_read_behind_what_was_dropped(model: LoadedModel, oracle: Oracle) -> None:
    start = partial(begin, model, prompt_of(model, 4, 3), TOKENS, arrays=False)
    plain = start()
    run(model)
    turn, steps, accepted = speculating(model, plain, start)
    assert steps + accepted == STEPS
    assert accepted > TOKENS / 4
    assert same(model, plain, turn)
    assert right(oracle, turn)


@pytest.mark.parametrize("directory", [write_qwen3_next, write_mamba2], ids=["qwen3_next", "mamba2"], indirect=True)
def test_recurrent_layers_cannot_be_trimmed_and_do_not_speculate(model: LoadedModel) -> None:
    plain, turn, steps, accepted = both_ways(model)
    assert (steps, accepted) == (STEPS, 0)
    assert [e.token_id for e in turn.events] == [e.token_id for e in plain.events]


def test_costs_are_the_median_of_what_steps_took() -> None:
    costs = StepCosts()
    unknown = costs.of(7)
    assert 1 < unknown < 2
    for seconds in (0.5, 0.1, 0.1, 0.1, 0.1):
        costs.took(0, seconds)
    costs.took(7, 30.0)
    costs.took(7, 0.3)
    costs.took(7, 0.3)
    assert costs.of(7) == unknown, "one that compiles counts for nothing, and two prove little"
    costs.took(7, 5.0)
    assert costs.of(7) == pytest.approx(3.0)
    assert costs.of(3) == 1 + 4 / 16
    costs.took(3, 0.01)
    for _ in range(3):
        costs.took(3, 0.01)
    assert costs.of(3) == 1.0, "no step takes less than a plain one"
    for _ in range(10_000):
        costs.took(0, 0.1)
    assert costs.of(7) == unknown, "what was too dear is tried again some time"
