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

from benchmarks.loading import load
from inference_service.domain import Sampling
from inference_service.engine import batching, speculation
from inference_service.engine.drafting import Guess
from inference_service.engine.generation import TurnJob
from inference_service.engine.paged.sequence import WorkingKV
from inference_service.engine.sampling import TokenSampler
from inference_service.engine.speculation import StepCosts, sampled_along
from inference_service.models.fingerprint import ContentHashes
from inference_service.models.loaded import LoadedModel
from tests.inference_service.engine.batch_turns import EXACT, Turn, begin, prompt_of, right, run
from tests.inference_service.engine.foresight import (
    PENALIZED,
    TOKENS,
    WARM,
    Foresight,
    both_ways,
    foresee,
    same,
    speculating,
)
from tests.oracle import Oracle
from tests.tiny_hybrids import write_qwen3_next
from tests.tiny_models import write_deepseek2, write_gemma3, write_gpt_oss, write_llama, write_phi
from tests.tiny_own_attention import write_deepseek3, write_stablelm
from tests.tiny_states import write_mamba2

pytestmark = pytest.mark.sampled(3)

Writer = Callable[[Path], Path]

STEPS = TOKENS + 1
"""Without drafts: the last one computes KV alone."""
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


@pytest.mark.parametrize("write", [write_llama, write_narrow_gemma3])
def test_what_is_in_blocks_alone_is_read_behind_what_was_dropped(
    models: Callable[[Writer], tuple[LoadedModel, Oracle]], write: Writer
) -> None:
    """Where there is no memory for K and V as arrays."""
    model, oracle = models(write)
    start = partial(begin, model, prompt_of(model, 4, 3), TOKENS, arrays=False)
    plain = start()
    run(model)
    turn, steps, accepted = speculating(model, plain, start)
    assert steps + accepted == STEPS
    assert accepted > TOKENS / 4
    assert same(model, plain, turn)
    assert right(oracle, turn)


def test_drafts_that_are_right_follow_each_other(llama: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """No plain step is between two; there are those of the first token, of what was under way, and of the last KV."""

    def all_right(self: Foresight, most: int, _ends: Any) -> list[Guess]:
        return [Guess(token, 1.0) for token in self.next(min(most, 7))]

    monkeypatch.setattr(Foresight, "guesses", all_right)
    plain, turn, steps, accepted = both_ways(llama)
    assert same(llama, plain, turn)
    assert steps - -(-accepted // 7) <= 3
    assert steps + accepted == STEPS


def test_a_model_whose_prompts_do_not_ride_speculates(llama: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft is a chunk, as of a prompt, and not rows."""
    monkeypatch.setattr(llama.engine.model, "rides", False)
    plain, turn, steps, accepted = both_ways(llama)
    assert same(llama, plain, turn)
    assert accepted > TOKENS / 4
    assert steps + accepted >= STEPS


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
        assert same(model, plain, turn)
        assert right(oracle, turn)


def keeps_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rejected tokens stay in every layer."""
    monkeypatch.setattr(WorkingKV, "trim", lambda self, tokens: None)


def trims_one_more(monkeypatch: pytest.MonkeyPatch) -> None:
    trim = WorkingKV.trim
    monkeypatch.setattr(WorkingKV, "trim", lambda self, tokens: trim(self, tokens + (tokens > 1)))


def windows_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rejected tokens stay in sliding layers."""
    trim = WorkingKV.trim
    monkeypatch.setattr(WorkingKV, "trim", lambda self, tokens: None if self.window else trim(self, tokens))


def accepts_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first token of a draft is taken as it is."""
    one_by_one = speculation._one_by_one

    def careless(logits: mx.array, job: TurnJob, draft: Sequence[int]) -> list[int]:
        sampler = job.sampler
        calls = 0

        class Agreeing:
            greedy, biases = False, sampler.biases

            def __call__(self, logprobs: mx.array) -> mx.array:
                nonlocal calls
                calls += 1
                sampled = sampler(logprobs)
                return mx.array([draft[0]]) if draft and calls == 1 else sampled

        job.sampler = Agreeing()  # type: ignore[assignment]
        try:
            return one_by_one(logits, job, draft)
        finally:
            job.sampler = sampler

    monkeypatch.setattr(speculation, "_one_by_one", careless)


def accepts_unseen_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `accepts_unseen`, of a turn whose tokens are sampled at once."""

    def careless(logits: mx.array, jobs: Sequence[TurnJob], drafts: Sequence[Sequence[int]]) -> list[list[int]]:
        found = sampled_along(logits, jobs, drafts)
        return [[*draft[:1], *tokens[1:]] if draft else tokens for tokens, draft in zip(found, drafts, strict=True)]

    monkeypatch.setattr(batching, "sampled_along", careless)


def draws_other_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of rejected tokens are used up."""
    monkeypatch.setattr(TokenSampler, "return_keys", lambda self, count: None)


def forgets_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """Penalties count tokens that were rejected."""
    one_by_one = speculation._one_by_one
    rejected: list[int] = []

    def counting(logits: mx.array, job: TurnJob, draft: Sequence[int]) -> list[int]:
        penalties = job.penalties

        def beside(penalty: Any, seen: mx.array, own: mx.array) -> mx.array:
            changed: mx.array = penalty(mx.concatenate([seen, mx.array(rejected, dtype=seen.dtype)]), own)
            return changed

        job.penalties = [partial(beside, penalty) for penalty in penalties]
        try:
            found = one_by_one(logits, job, draft)
        finally:
            job.penalties = penalties
        rejected.extend(draft[len(found) - 1 :])
        return found

    monkeypatch.setattr(speculation, "_one_by_one", counting)


@pytest.mark.slow(
    "accepts_unseen-write_llama-sampling6-0",
    "keeps_rejected-write1-sampling1-0",
    "windows_stay-write4-sampling4-0",
    "trims_one_more-write3-sampling3-0",
)
@pytest.mark.parametrize(
    ("fault", "write", "sampling", "top"),
    [
        (keeps_rejected, write_llama, EXACT, 0),
        (keeps_rejected, write_narrow_gemma3, EXACT, 0),
        (trims_one_more, write_llama, EXACT, 0),
        (trims_one_more, write_narrow_gemma3, EXACT, 0),
        (windows_stay, write_narrow_gemma3, EXACT, 0),
        (accepts_unseen, write_llama, EXACT, 0),
        (accepts_unseen, write_llama, WARM, 0),
        (forgets_context, write_llama, PENALIZED, 0),
        (accepts_unseen_at_once, write_llama, EXACT, None),
        (draws_other_tokens, write_llama, WARM, None),
    ],
)
def test_injected_faults_are_found(
    models: Callable[[Writer], tuple[LoadedModel, Oracle]],
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[pytest.MonkeyPatch], None],
    write: Writer,
    sampling: Sampling,
    top: int | None,
) -> None:
    model, _ = models(write)
    start = partial(begin, model, prompt_of(model, 4, 3), TOKENS, sampling, top_logprobs=top)
    plain = start()
    run(model)
    monkeypatch.setattr(Foresight, "guesses", undeterred)
    assert same(model, plain, speculating(model, plain, start)[0]), "without the fault"
    fault(monkeypatch)
    assert not same(model, plain, speculating(model, plain, start)[0])


def undeterred(self: Foresight, most: int, _ends: Any) -> list[Guess]:
    """Four tokens, of which the first or the third is wrong; also where the turn has gone astray."""
    at = self.tokens - len(self.prompt)
    wrong = 2 * (at % 2)
    found = [
        (token + 1) % 90 if place == wrong else token for place, token in enumerate(self.said[at:][: min(most, 4)])
    ]
    return [Guess(token, 1.0) for token in found]


@pytest.mark.parametrize("write", [write_qwen3_next, write_mamba2])
def test_recurrent_layers_cannot_be_trimmed_and_do_not_speculate(
    models: Callable[[Writer], tuple[LoadedModel, Oracle]], write: Writer
) -> None:
    plain, turn, steps, accepted = both_ways(models(write)[0])
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
