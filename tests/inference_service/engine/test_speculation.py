"""Rows that compute several tokens in a step: tokens, log-probabilities and packed KV are those of plain steps,
whatever was guessed; and faults in that are found.
"""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache as cached
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from agentmem.errors import Cancelled
from agentmem.v1 import types_pb2
from benchmarks.loading import load
from inference_service.domain import Sampling
from inference_service.engine import speculation
from inference_service.engine.caches.buffers import BatchCache
from inference_service.engine.caches.sliding import BatchSlidingQuantizedKVCache
from inference_service.engine.compiled_step import CompiledSteps
from inference_service.engine.generation import Decoding, TurnJob
from inference_service.engine.mlx_lm_adapter import GenerationBatch, several_steps
from inference_service.engine.speculation import StepCosts
from inference_service.models.fingerprint import ContentHashes
from inference_service.models.loaded import LoadedModel
from tests.inference_service.engine.batch_turns import Turn, begin, prompt_of, right, run
from tests.inference_service.engine.test_batches import FLIPPED_CODES, flipped, goes_on
from tests.json_schemas import fits
from tests.oracle import Oracle
from tests.tiny_hybrids import write_qwen3_next
from tests.tiny_models import write_deepseek2, write_gemma3, write_gpt_oss, write_llama, write_phi
from tests.tiny_own_attention import write_deepseek3, write_stablelm
from tests.tiny_states import write_mamba2

Writer = Callable[[Path], Path]

write_narrow_gemma3 = partial(write_gemma3, window=16)
WRITERS: list[Writer] = [
    write_llama, write_phi, write_narrow_gemma3, write_gpt_oss, write_deepseek2, write_deepseek3, write_stablelm,
]  # fmt: skip
TOKENS = 40
EXACT = Sampling(ignore_eos=True)
WARM = Sampling(temperature=1.0, top_p=0.95, seed=3, ignore_eos=True)
PENALIZED = Sampling(
    temperature=0.8, seed=5, repetition_penalty=1.3, frequency_penalty=0.7, presence_penalty=0.4, ignore_eos=True
)


class Foresight:
    """Guesses what a turn says, with mistakes at random. Takes the place of the look-up in a history."""

    said: Sequence[int] = ()
    prompt: Sequence[int] = ()
    chance = random.Random(0)
    drafted = 0

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = list(tokens)

    def add(self, token: int) -> None:
        self.tokens.append(token)

    def draft(self, most: int, ends: Any, _cost: Any) -> list[int]:
        at = len(self.tokens) - len(self.prompt)
        assert self.tokens == [*self.prompt, *self.said[:at]], "the turn's tokens, each once"
        size = min(most, self.chance.choice([0, 1, 2, 3, 7, 12]))
        draft = list(self.said[at : at + size])
        if draft and self.chance.random() < 0.7:
            wrong = self.chance.randrange(len(draft))
            draft[wrong:] = [(token + 1) % 90 for token in draft[wrong:]]
        stop = next((place for place, token in enumerate(draft) if token in ends), len(draft))
        return draft[:stop]


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
def foresight(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(speculation, "Drafter", Foresight)
    monkeypatch.setattr(Foresight, "chance", random.Random(1))
    yield
    Foresight.said = Foresight.prompt = ()


def speculating(model: LoadedModel, plain: Turn, start: Callable[[], Turn]) -> tuple[Turn, int, int]:
    """The turn again with drafts of what it said before; steps, and tokens of drafts that were right."""
    steps: list[str] = []
    accepted: list[int] = []
    engine = model.engine
    Foresight.prompt, Foresight.said = list(plain.job.sequence), [event.token_id for event in plain.events]
    engine.speculative, engine.stepped = True, steps.append
    engine.speculated = lambda _drafted, right: accepted.append(right)
    try:
        turn = start()
        run(model)
    finally:
        engine.speculative, engine.stepped = False, lambda _: None
        engine.speculated = lambda _drafted, _right: None
    return turn, steps.count("decode"), sum(accepted)


def both_ways(model: LoadedModel, sampling: Sampling = EXACT, repeats: int = 3) -> tuple[Turn, Turn, int, int]:
    """A turn by plain steps and by several tokens in one."""
    start = partial(begin, model, prompt_of(model, 4, repeats), TOKENS, sampling)
    plain = start()
    run(model)
    assert len({event.token_id for event in plain.events}) > 5, "an output that does not vary proves nothing"
    return plain, *speculating(model, plain, start)


def same(plain: Turn, turn: Turn) -> bool:
    """Whether a turn gave the tokens of another, with their log-probabilities, each by an event, and KV of them."""
    if [e.token_id for e in turn.events] != [e.token_id for e in plain.events]:
        return False
    if max(abs((a.logprob or 0) - (b.logprob or 0)) for a, b in zip(turn.events, plain.events, strict=True)) > 1e-3:
        return False
    (found, generated), (wanted, _) = turn.job.future.result(0), plain.job.future.result(0)
    length = len(turn.job.sequence) + len(generated.token_ids)
    return {int(cache.offset) for cache in found} == {length} and flipped(found, wanted)[0] < FLIPPED_CODES


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


def test_a_turn_that_ends_itself_ends_there(llama: LoadedModel) -> None:
    """What follows the token that ends an answer is in no draft, nor in KV."""
    ends = {event.token_id for event in both_ways(llama)[0].events[20:21]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llama.tokenizer, "eos_ids", frozenset(ends))
        plain = begin(llama, prompt_of(llama, 4, 3), TOKENS, Sampling())
        run(llama)
        assert plain.generated.reason == types_pb2.FINISH_REASON_STOP
        for _ in range(4):
            start = partial(begin, llama, prompt_of(llama, 4, 3), TOKENS, Sampling())
            assert same(plain, speculating(llama, plain, start)[0])


def test_an_answer_ends_where_it_would_have_ended(llama: LoadedModel) -> None:
    """At a stop string within a draft, at max_tokens, and at a token that ends it; KV is that of what stays."""
    prompt = prompt_of(llama, 4, 3)

    def start(decoding: Decoding) -> Turn:
        turn = Turn(None)  # type: ignore[arg-type]  # The job needs its lists.
        turn.job = TurnJob(prompt, llama.new_caches, decoding, turn.events.append, turn.cancelled)
        llama.engine.add(turn.job)
        return turn

    plain = start(Decoding(TOKENS, sampling=EXACT, top_logprobs=3))
    run(llama)
    text = "".join(event.text for event in plain.events)
    stop = text[len(text) // 2 :][:3]
    assert len(stop) == 3
    for how in (
        Decoding(TOKENS, sampling=EXACT, top_logprobs=3),
        Decoding(TOKENS, sampling=EXACT, stop=(stop,), top_logprobs=3),
        Decoding(17, sampling=EXACT, top_logprobs=3),
        Decoding(1, sampling=EXACT, top_logprobs=3),
    ):
        wanted = start(how)
        run(llama)
        for _ in range(4):
            turn, _, _ = speculating(llama, plain, partial(start, how))
            assert same(wanted, turn)
            assert [event.text for event in turn.events] == [event.text for event in wanted.events]
            for found, expected in zip(turn.events, wanted.events, strict=True):
                assert [token for token, _ in found.top] == [token for token, _ in expected.top]
            assert turn.generated.token_ids == wanted.generated.token_ids
            assert turn.generated.reason == wanted.generated.reason
            assert turn.generated.sampled == wanted.generated.sampled


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, seed=3)], ids=["greedy", "sampled"])
def test_a_grammar_holds_each_token_of_a_draft(tmp_path: Path, sampling: Sampling) -> None:
    """Though most drafts go on as no grammar allows."""
    directory = write_llama(tmp_path, vocab_size=352)
    model = load("tiny", str(directory), hashes=ContentHashes(tmp_path / "hashes.json"))
    schema = {
        "type": "object",
        "properties": {
            "choice": {"enum": ["yes indeed", "not at all"]},
            "list": {"type": "array", "items": {"const": 17}, "minItems": 3, "maxItems": 5},
        },
        "required": ["choice", "list"],
        "additionalProperties": False,
    }

    def start() -> Turn:
        grammar = model.grammars.compile(json.dumps(schema))
        decoding = Decoding(300, sampling=sampling, top_logprobs=0, grammar=grammar)
        turn = Turn(None)  # type: ignore[arg-type]  # The job needs its lists.
        turn.job = TurnJob(prompt_of(model, 4, 3), model.new_caches, decoding, turn.events.append, turn.cancelled)
        model.engine.add(turn.job)
        return turn

    plain = start()
    run(model)
    assert plain.generated.reason == types_pb2.FINISH_REASON_STOP
    turn, steps, accepted = speculating(model, plain, start)
    assert same(plain, turn)
    assert fits("".join(event.text for event in turn.events) + turn.generated.rest.text, schema)
    assert accepted > 5
    assert steps < len(turn.events)


def test_a_row_that_gets_company_and_is_alone_again(llama: LoadedModel, models: Any) -> None:
    oracle = models(write_llama)[1]
    plain = begin(llama, prompt_of(llama, 4, 3), 3 * TOKENS)
    run(llama)
    others: list[Turn] = []

    def start() -> Turn:
        turn = begin(llama, prompt_of(llama, 4, 3), 3 * TOKENS)
        while len(turn.events) < 10:
            llama.engine.step()
        others.append(begin(llama, prompt_of(llama, 1, 1), 12))
        assert turn.job.speculation is not None
        llama.engine.step()
        llama.engine.step()
        assert turn.job.speculation is None, "rows of a batch take one token a step"
        return turn

    Foresight.chance = random.Random(2)
    turn, steps, _ = speculating(llama, plain, start)
    assert steps < 3 * TOKENS
    assert same(plain, turn)
    assert turn.job.speculation is not None, "it was alone in the end"
    assert right(oracle, others[0])


def test_a_step_that_fails_is_done_again_by_plain_ones(
    llama: LoadedModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """From the tokens that were told: whatever the sampler had done by then is undone."""
    calls = 0

    def failing(row: GenerationBatch, draft: Sequence[int]) -> list[int]:
        nonlocal calls
        calls += 1
        tokens = several_steps(row, draft)
        if calls == 4:
            raise RuntimeError("the device has gone")
        return tokens

    monkeypatch.setattr(speculation, "several_steps", failing)
    for sampling in (EXACT, WARM, PENALIZED):
        calls = 0
        plain, turn, _, _ = both_ways(llama, sampling)
        assert calls == 4, "it is kept apart, and does not speculate again"
        assert same(plain, turn)
    assert "the device has gone" in caplog.text


def test_a_turn_is_cancelled_within_a_step(llama: LoadedModel) -> None:
    plain = begin(llama, prompt_of(llama, 4, 3), TOKENS)
    run(llama)

    def start() -> Turn:
        turn = begin(llama, prompt_of(llama, 4, 3), TOKENS)
        while len(turn.events) < 8:
            llama.engine.step()
        turn.cancelled.set()
        return turn

    turn, _, _ = speculating(llama, plain, start)
    assert len(turn.events) < TOKENS
    with pytest.raises(Cancelled):
        turn.job.future.result(0)
    assert [e.token_id for e in turn.events] == [e.token_id for e in plain.events][: len(turn.events)]


@pytest.mark.parametrize("write", [write_qwen3_next, write_mamba2])
def test_recurrent_layers_cannot_be_trimmed_and_do_not_speculate(
    models: Callable[[Writer], tuple[LoadedModel, Oracle]], write: Writer
) -> None:
    plain, turn, steps, accepted = both_ways(models(write)[0])
    assert (steps, accepted) == (TOKENS, 0)
    assert [e.token_id for e in turn.events] == [e.token_id for e in plain.events]


def test_it_is_off_unless_it_is_asked_for(llama: LoadedModel) -> None:
    Foresight.prompt = Foresight.said = ()
    turn = begin(llama, prompt_of(llama, 4, 3), 5)
    run(llama)
    assert turn.job.speculation is None


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
