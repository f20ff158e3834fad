"""Rows that compute several tokens in a step: tokens, log-probabilities and packed KV are those of plain steps,
whatever was guessed; and faults in that are found.
"""

from collections.abc import Callable, Sequence
from functools import cache as cached
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from inference_service.engine.caches.buffers import BatchCache
from inference_service.engine.caches.sliding import BatchSlidingQuantizedKVCache
from inference_service.engine.compiled_step import CompiledSteps

from benchmarks.loading import load
from inference_service.domain import Sampling
from inference_service.engine import speculation
from inference_service.engine.mlx_lm_adapter import GenerationBatch, several_steps
from inference_service.engine.speculation import StepCosts
from inference_service.models.fingerprint import ContentHashes
from inference_service.models.loaded import LoadedModel
from tests.inference_service.engine.batch_turns import begin, prompt_of, right, run
from tests.inference_service.engine.foresight import (
    EXACT,
    PENALIZED,
    TOKENS,
    WARM,
    Foresight,
    both_ways,
    foresee,
    same,
    speculating,
)
from tests.inference_service.engine.test_batches import goes_on
from tests.oracle import Oracle
from tests.tiny_hybrids import write_qwen3_next
from tests.tiny_models import write_deepseek2, write_gemma3, write_gpt_oss, write_llama, write_phi
from tests.tiny_own_attention import write_deepseek3, write_stablelm
from tests.tiny_states import write_mamba2

pytestmark = pytest.mark.sampled(3)

Writer = Callable[[Path], Path]

write_narrow_gemma3 = partial(write_gemma3, window=16)
WRITERS: list[Writer] = [
    write_llama, write_phi, write_narrow_gemma3, write_gpt_oss, write_deepseek2, write_deepseek3, write_stablelm,
]  # fmt: skip


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Writer], tuple[LoadedModel, Oracle]]:
    """Loads each once."""

    @cached
    def model_of(write: Writer) -> tuple[LoadedModel, Oracle]:
        directory = write(tmp_path_factory.mktemp("model"))
        hashes = ContentHashes(directory / "hashes.json")
        return load("tiny", str(directory), pool_bytes=1 << 24, hashes=hashes), Oracle(directory)

    return model_of


@pytest.fixture(params=[pytest.param(w, id=getattr(w, "__name__", "narrow_gemma3")) for w in WRITERS])
def each(request: pytest.FixtureRequest, models: Callable[[Writer], tuple[LoadedModel, Oracle]]) -> Any:
    return models(request.param)


@pytest.fixture
def llama(models: Callable[[Writer], tuple[LoadedModel, Oracle]]) -> LoadedModel:
    return models(write_llama)[0]


@pytest.fixture(autouse=True)
def drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    foresee(monkeypatch)


@pytest.mark.slow(
    "write_gpt_oss-greedy",
    "write_stablelm-sampled",
    "write_deepseek3-greedy",
    "write_stablelm-greedy",
    "narrow_gemma3-greedy",
)
@pytest.mark.parametrize("sampling", [EXACT, WARM, PENALIZED], ids=["greedy", "sampled", "penalized"])
def test_tokens_and_kv_are_those_of_plain_steps(each: tuple[LoadedModel, Oracle], sampling: Sampling) -> None:
    model, oracle = each
    plain, turn, steps, accepted = both_ways(model, sampling)
    assert steps + accepted == TOKENS
    assert accepted > TOKENS / 4
    assert same(plain, turn)
    if sampling is EXACT:
        assert right(oracle, turn)
        caches, generated = turn.job.future.result(0)
        assert goes_on(model, oracle, caches, [*turn.job.sequence, *generated.token_ids])


@pytest.mark.slow
def test_buffers_and_windows_grow_meanwhile(models: Callable[[Writer], tuple[LoadedModel, Oracle]]) -> None:
    """Past 256 tokens of buffers, and past what a window keeps."""
    for write in (write_llama, write_narrow_gemma3):
        model, oracle = models(write)
        prompt = (prompt_of(model, 4, 20) * 4)[:246]
        start = partial(begin, model, prompt, 60)
        plain = start()
        run(model)
        turn, _, accepted = speculating(model, plain, start)
        assert accepted > 10
        assert same(plain, turn)
        assert right(oracle, turn)


def test_compiled_steps_go_on_behind_what_was_dropped(llama: LoadedModel) -> None:
    network = llama.engine.model
    network.steps = CompiledSteps(network.computed, steps_before=0)
    try:
        plain, turn, _, accepted = both_ways(llama)
        assert network.steps.compiled
    finally:
        network.steps = None
    assert accepted
    assert same(plain, turn)


def keeps_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was rejected stays in every layer, and counts."""
    monkeypatch.setattr(BatchCache, "trim", lambda self, tokens: None)
    monkeypatch.setattr(BatchSlidingQuantizedKVCache, "trim", lambda self, tokens: None)


def trims_one_more(monkeypatch: pytest.MonkeyPatch) -> None:
    trim = BatchCache.trim
    monkeypatch.setattr(BatchCache, "trim", lambda self, tokens: trim(self, tokens + (tokens > 1)))


def offsets_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of sliding layers, whose offsets are numbers of their own."""
    monkeypatch.setattr(BatchSlidingQuantizedKVCache, "trim", BatchCache.trim)


def accepts_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first token of a draft is taken as it is."""

    def careless(row: GenerationBatch, draft: Sequence[int]) -> list[int]:
        [sampler] = row.samplers
        calls = 0

        def agrees(logprobs: mx.array) -> mx.array:
            nonlocal calls
            calls += 1
            sampled = sampler(logprobs)
            return mx.array([draft[0]]) if calls == 1 else sampled

        row.samplers = [agrees]
        try:
            return several_steps(row, draft)
        finally:
            row.samplers = [sampler]

    monkeypatch.setattr(speculation, "several_steps", careless)


def forgets_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """Penalties count tokens that were rejected."""
    monkeypatch.setattr(
        speculation, "several_steps", lambda row, draft: _without(row, several_steps(row, draft), len(draft))
    )


def _without(row: GenerationBatch, tokens: list[int], drafted: int) -> list[int]:
    row._token_context[0]._size += 1 + drafted - len(tokens)
    return tokens


@pytest.mark.slow(
    "accepts_unseen-write_llama-sampling6",
    "keeps_rejected-write1-sampling1",
    "offsets_stay-write4-sampling4",
    "trims_one_more-write3-sampling3",
)
@pytest.mark.parametrize(
    ("fault", "write", "sampling"),
    [
        (keeps_rejected, write_llama, EXACT),
        (keeps_rejected, write_narrow_gemma3, EXACT),
        (trims_one_more, write_llama, EXACT),
        (trims_one_more, write_narrow_gemma3, EXACT),
        (offsets_stay, write_narrow_gemma3, EXACT),
        (accepts_unseen, write_llama, EXACT),
        (accepts_unseen, write_llama, WARM),
        (forgets_context, write_llama, PENALIZED),
    ],
)
def test_injected_faults_are_found(
    models: Callable[[Writer], tuple[LoadedModel, Oracle]],
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[pytest.MonkeyPatch], None],
    write: Writer,
    sampling: Sampling,
) -> None:
    model, _ = models(write)
    start = partial(begin, model, prompt_of(model, 4, 3), TOKENS, sampling)
    plain = start()
    run(model)
    monkeypatch.setattr(Foresight, "draft", undeterred)
    assert same(plain, speculating(model, plain, start)[0]), "without the fault"
    fault(monkeypatch)
    assert not same(plain, speculating(model, plain, start)[0])


def undeterred(self: Foresight, most: int, _ends: Any, _cost: Any) -> list[int]:
    """Four tokens, of which the first or the third is wrong; also where the turn has gone astray."""
    at = len(self.tokens) - len(self.prompt)
    draft = list(self.said[at : at + min(most, 4)])
    wrong = 2 * (at % 2)
    return [(token + 1) % 90 if place == wrong else token for place, token in enumerate(draft)]


@pytest.mark.parametrize("write", [write_qwen3_next, write_mamba2])
def test_recurrent_layers_cannot_be_trimmed_and_do_not_speculate(
    models: Callable[[Writer], tuple[LoadedModel, Oracle]], write: Writer
) -> None:
    plain, turn, steps, accepted = both_ways(models(write)[0])
    assert (steps, accepted) == (TOKENS, 0)
    assert [e.token_id for e in turn.events] == [e.token_id for e in plain.events]


def test_costs_are_the_median_of_what_steps_took() -> None:
    costs = StepCosts()
    unknown = costs.of(8)
    assert 1 < unknown < 2
    for seconds in (0.5, 0.1, 0.1, 0.1, 0.1):
        costs.took(1, seconds)
    costs.took(8, 30.0)
    costs.took(8, 0.3)
    costs.took(8, 0.3)
    assert costs.of(8) == unknown, "one that compiles counts for nothing, and two prove little"
    costs.took(8, 5.0)
    assert costs.of(8) == pytest.approx(3.0)
    assert costs.of(4) == 1 + 4 / 16
    costs.took(4, 0.01)
    for _ in range(3):
        costs.took(4, 0.01)
    assert costs.of(4) == 1.0, "no step takes less than one of a token"
    for _ in range(10_000):
        costs.took(1, 0.1)
    assert costs.of(8) == unknown, "what was too dear is tried again some time"
