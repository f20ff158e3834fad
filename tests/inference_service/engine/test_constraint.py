"""Turns held to schemas in a batch: each to its own, whoever comes and goes, and none at the others' cost."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from agentmem.errors import InvalidArgument
from agentmem.v1 import types_pb2
from inference_service.domain import Sampling
from inference_service.engine import batching
from inference_service.engine.paged.writing import Written
from inference_service.engine.sampling import ConstrainedSampler
from inference_service.models.loaded import LoadedModel
from tests.inference_service.directories import written_by
from tests.inference_service.engine import batch_turns
from tests.inference_service.engine.batch_turns import right, run
from tests.json_schemas import Schema, fits
from tests.oracle import Oracle
from tests.tiny_models import write_llama

WARM = Sampling(temperature=1.0, seed=3)


def split_answer(number: int) -> Schema:
    """A schema whose every text tells whose it is."""
    key = f"key{number}"
    return {
        "type": "object",
        "properties": {
            key: {"enum": [f"{number}-{choice}" for choice in ("yes", "no", "maybe")]},
            "list": {"type": "array", "items": {"const": number}, "minItems": number, "maxItems": number + 2},
        },
        "required": [key, "list"],
        "additionalProperties": False,
    }


@dataclass
class Turn(batch_turns.Turn):
    """A turn that may be held to a schema."""

    schema: Schema | None = None

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events) + self.generated.rest.text

    @property
    def fits(self) -> bool:
        assert self.schema is not None
        return self.generated.reason == types_pb2.FINISH_REASON_STOP and fits(self.text, self.schema)


directory = written_by([write_llama], vocab_size=352)


def begin(
    model: LoadedModel,
    number: int,
    schema: Schema | None,
    sampling: Sampling = WARM,
    tokens: int = 600,
    **options: Any,
) -> Turn:
    grammar = None if schema is None else model.grammars.compile(json.dumps(schema))
    prompt = model.tokenizer.encode(f"{number} The boat by the sea. " * (1 + 3 * number % 7), parse_special=False)
    begun = batch_turns.begin(model, prompt, tokens, sampling, grammar=grammar, **options)
    return Turn(begun.job, begun.events, schema=schema)


def mixed(model: LoadedModel) -> list[Turn]:
    """Four held turns and two free ones that join one after the other; each must be as it should."""
    assert model.vocab_size > model.tokenizer.vocab_size, "some logits are of no token"
    free = Sampling(ignore_eos=True)
    turns: list[Turn] = []
    for number in range(6):
        turns.append(
            begin(model, number, split_answer(number), WARM) if number < 4 else begin(model, 9, None, free, 40)
        )
        for _ in range(3):
            model.engine.step()
    run(model)
    assert all(turn.fits for turn in turns[:4])
    assert turns[4].generated.token_ids == turns[5].generated.token_ids
    assert turns[4].generated.sampled == 40
    return turns


@pytest.mark.slow
def test_each_row_is_held_to_its_own_schema_and_logprobs_stay_the_models(model: LoadedModel, oracle: Oracle) -> None:
    turns = mixed(model)
    assert all(right(oracle, turn) for turn in turns)
    together = [turn.text for turn in turns]
    for number, turn in enumerate(turns[:4]):
        alone = begin(model, number, turn.schema)
        run(model)
        assert alone.text == together[number], "a seed gives the same text in company"


@pytest.mark.slow
@pytest.mark.parametrize("what", ["compute", "sample", "put"])
def test_a_pass_that_fails_leaves_every_grammar_where_it_was(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    expected = [turn.text for turn in mixed(model)]
    failures, passes = [MemoryError("no room")], [0]

    def failing(original: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            result = original(*arguments)
            passes[0] += 1
            if failures and passes[0] > 20:
                raise failures.pop()
            return result

        return called

    match what:
        case "compute":
            monkeypatch.setattr(model.arenas, "compute", failing(model.arenas.compute))
        case "sample":
            monkeypatch.setattr(batching, "next_tokens", failing(batching.next_tokens))
        case "put":
            monkeypatch.setattr(Written, "put", failing(Written.put))
    turns = mixed(model)
    assert not failures, "the fault was met"
    assert sum(turn.job.alone for turn in turns) > 1
    assert [turn.text for turn in turns] == expected


def test_a_grammar_that_takes_too_long_ends_its_turn_and_no_step(
    model: LoadedModel, oracle: Oracle, caplog: pytest.LogCaptureFixture
) -> None:
    bad = begin(model, 3, split_answer(3))
    good = [begin(model, 1, split_answer(1)), begin(model, 9, None, Sampling(ignore_eos=True), 30)]
    while len(bad.events) < 4:
        model.engine.step()
    assert isinstance(bad.job.sampler, ConstrainedSampler)
    bad.job.sampler._grammar._seconds = 100.0
    run(model)
    with pytest.raises(InvalidArgument, match="too complex"):
        bad.job.future.result(0)
    assert len(bad.events) in (4, 5), "nothing that was chosen without the grammar is told"
    assert good[0].fits
    assert all(right(oracle, turn) for turn in good)
    assert "a step of" not in caplog.text


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=5.0, seed=1),
        Sampling(temperature=1.0, top_p=0.05, seed=1),
        Sampling(temperature=1.0, min_p=0.9, top_k=1, seed=1),
        Sampling(temperature=1.0, top_k=2, seed=1, frequency_penalty=2.0, presence_penalty=2.0, repetition_penalty=2.0),
        Sampling(logit_bias=dict.fromkeys(range(320), -1e38)),
    ],
    ids=["greedy", "hot", "top_p", "min_p", "penalties", "bias against everything"],
)
def test_filters_choose_among_what_is_allowed(model: LoadedModel, sampling: Sampling) -> None:
    turn = begin(model, 2, split_answer(2), sampling, tokens=2000)
    run(model)
    assert turn.fits, turn.text


def test_the_end_is_forced_and_kept_as_any_other(model: LoadedModel) -> None:
    turn = begin(model, 2, {"const": "only"})
    run(model)
    assert turn.text == '"only"'
    assert turn.generated.token_ids[-1] in model.tokenizer.eos_ids
    assert turn.whole
    assert turn.events[-1].logprob is not None
    assert turn.events[-1].logprob < -1e-3, "the model would have gone on; its log-probability says so"


def test_max_tokens_and_stop_strings_may_cut_the_json(model: LoadedModel) -> None:
    cut = begin(model, 2, split_answer(2), tokens=5)
    stopped = begin(model, 2, split_answer(2), stop=("key2",))
    run(model)
    assert cut.generated.reason == types_pb2.FINISH_REASON_LENGTH
    assert cut.generated.sampled == 5
    assert stopped.generated.stop_string == "key2"
    assert stopped.text.endswith('"')
