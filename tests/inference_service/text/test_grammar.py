"""Which tokens may come next: always some that lead to JSON that fits, and the end only where it is over."""

import json
import random
from contextlib import suppress
from functools import cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentmem.errors import FailedPrecondition, InvalidArgument
from inference_service.text import grammar as module
from inference_service.text.grammar import Grammar, Grammars
from inference_service.text.lark import MAX_INDENT
from inference_service.text.tokenizer import Tokenizer
from tests.inference_service.real_tokenizers import byte_level, byte_level_backend, llama3_like, nfc, sentence_piece
from tests.json_schemas import HOSTILE, SCHEMAS, Schema, fits

PADDING = 40
TOKENIZERS = {maker.__name__: maker for maker in (byte_level, llama3_like, nfc, sentence_piece)}


@cache
def grammars(tokenizer: str) -> Grammars:
    """For a model with more logits than its tokenizer has tokens."""
    made = TOKENIZERS[tokenizer]()
    return Grammars(made, made.vocab_size + PADDING)


def compiled(schema: Schema, tokenizer: str = "byte_level") -> Grammar:
    return grammars(tokenizer).compile(json.dumps(schema))


def written(tokenizer: Tokenizer, token_ids: list[int]) -> str:
    return tokenizer.decode([i for i in token_ids if i not in tokenizer.eos_ids]).decode()


def wander(
    grammar: Grammar, tokenizer: Tokenizer, choice: random.Random, steps: int = 4000, *, free: bool = False
) -> list[int]:
    """Take allowed tokens at random until the end, seldom whitespace; what never may be allowed is looked for.

    Where text is `free`, special tokens are allowed, and it ends when it can after a while.
    """
    never = [] if free else sorted(tokenizer.special_ids - tokenizer.eos_ids)
    token_ids: list[int] = []
    while not grammar.ended:
        allowed = grammar.allowed()
        assert not allowed[never].any()
        assert not allowed[tokenizer.vocab_size :].any(), "logits that no token has"
        assert len({bool(allowed[i]) for i in tokenizer.eos_ids}) == 1
        ids = np.flatnonzero(allowed)
        visible = [i for i in ids if tokenizer.token_bytes(int(i)).strip()]
        ends = set(ids) & tokenizer.eos_ids if free and len(token_ids) > choice.randrange(150) else ()
        token_ids.append(int(choice.choice(list(ends) or (visible if choice.random() < 0.9 and visible else ids))))
        grammar.advance(token_ids[-1])
        assert len(token_ids) < steps
    return token_ids


@pytest.mark.parametrize("name", TOKENIZERS)
@given(schema=SCHEMAS, seed=st.integers(0, 2**32))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_is_chosen_the_text_fits(name: str, schema: Schema, seed: int) -> None:
    tokenizer = TOKENIZERS[name]()
    text = written(tokenizer, wander(compiled(schema, name), tokenizer, random.Random(seed)))
    assert fits(text, schema), (text, schema)


@given(schema=SCHEMAS, seed=st.integers(0, 2**32))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_end_is_allowed_where_the_text_fits_and_nowhere_else(schema: Schema, seed: int) -> None:
    tokenizer = byte_level()
    token_ids = wander(compiled(schema), tokenizer, random.Random(seed))
    again = compiled(schema)
    (end,) = tokenizer.eos_ids
    for position, token_id in enumerate(token_ids):
        before = tokenizer.decode(token_ids[:position]).decode(errors="replace")
        assert bool(again.allowed()[end]) == fits(before, schema), before
        again.advance(token_id)
    assert again.ended
    assert again.tokens == len(token_ids)


def test_a_text_that_was_written_elsewhere_is_allowed_as_it_is_tokenized() -> None:
    """The grammar takes what models write, laid out as they do, and not only what itself leads to."""
    value = {"name": "Grüße, 東京", "tags": ["a", "b\n"], "deep": {"n": -1.5e3, "none": None, "yes": True}}
    for indent in (None, 2, 8):
        for name, maker in TOKENIZERS.items():
            grammar, tokenizer = compiled({"type": "object"}, name), maker()
            text = json.dumps(value, ensure_ascii=False, indent=indent)
            for token_id in tokenizer.encode(text, parse_special=False, continues=True):
                assert grammar.allowed()[token_id], (name, indent, tokenizer.token_bytes(token_id))
                grammar.advance(token_id)
            assert grammar.allowed()[sorted(tokenizer.eos_ids)].all()


def test_when_the_json_is_complete_only_the_end_is_left() -> None:
    tokenizer = Tokenizer(byte_level_backend(), [0, 2])
    grammar = Grammars(tokenizer, tokenizer.vocab_size).compile('{"const": {"a": 1}}')
    for _ in range(5):
        while (allowed := set(np.flatnonzero(grammar.allowed()))) != {0, 2}:
            assert not allowed & {0, 1, 2}
            grammar.advance(max(allowed, key=lambda i: len(tokenizer.token_bytes(int(i)).strip())))
        grammar.advance(2)
        assert grammar.ended
        grammar.restart()
        assert not grammar.ended


def test_between_words_is_at_most_one_space_or_one_line_end_with_an_indentation() -> None:
    tokenizer = byte_level()
    brace, space, line_end = (tokenizer.encode(text, parse_special=False)[0] for text in "{ \n")
    for blanks in ([space], [line_end, *[space] * MAX_INDENT]):
        grammar = compiled({"type": "object"})
        for token_id in (brace, *blanks):
            assert grammar.allowed()[token_id]
            grammar.advance(token_id)
        blank = [i for i in np.flatnonzero(grammar.allowed()) if not tokenizer.token_bytes(int(i)).strip()]
        assert blank == [], "a word must follow"


def test_a_token_that_is_not_allowed_is_refused_and_a_restart_forgets_it() -> None:
    grammar, tokenizer = compiled({"type": "boolean"}), byte_level()
    for wrong in (tokenizer.encode("{", parse_special=False)[0], 0, tokenizer.vocab_size + 3):
        with pytest.raises(InvalidArgument):
            grammar.advance(wrong)
        grammar.restart()
    token_ids = tokenizer.encode("true", parse_special=False)
    for position in range(len(token_ids) + 1):
        fresh = compiled({"type": "boolean"})
        for token_id in token_ids[:position]:
            fresh.advance(token_id)
        grammar.restart(token_ids[:position])
        assert (grammar.allowed() == fresh.allowed()).all()
        assert grammar.tokens == position


@pytest.mark.slow("many optional properties", "patterns on patterns")
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_schemas_are_refused_or_can_be_followed(name: str) -> None:
    with suppress(InvalidArgument):
        grammar, choice = compiled(HOSTILE[name]), random.Random(0)
        for _ in range(100):
            if grammar.ended:
                break
            grammar.advance(int(choice.choice(np.flatnonzero(grammar.allowed()))))


def test_the_time_of_a_schema_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the clock of the thread: a slow step ends the turn, and so do many that are rather slow."""
    clock, costs = [0.0], [0.0]

    def thread_time() -> float:
        clock[0] += costs[0]
        return clock[0]

    monkeypatch.setattr(module.time, "thread_time", thread_time)
    bracket, digit = (byte_level().encode(c, parse_special=False)[0] for c in "[1")

    def steps_at(cost: float) -> int:
        costs[0] = 0.0
        grammar = compiled({"type": "array", "items": {"type": "integer"}})
        costs[0] = cost
        for step in range(1000):
            try:
                grammar.allowed()
                grammar.advance(digit if step else bracket)
            except InvalidArgument:
                return step
        return 1000

    assert steps_at(10.0) == 0
    assert 10 < steps_at(0.007) < 400
    assert steps_at(0.0001) == 1000


def refusal(tokenizer: Tokenizer, vocab_size: int) -> str:
    grammars = Grammars(tokenizer, vocab_size)
    grammars.prepare()
    with pytest.raises(FailedPrecondition) as error:
        grammars.compile('{"type": "object"}')
    return str(error.value)


class Without(Tokenizer):
    """A tokenizer whose tokens for some bytes stand for nothing."""

    def __init__(self, *lacking: int) -> None:
        super().__init__(byte_level_backend(), [2])
        self._lacking = {bytes([byte]) for byte in lacking}

    def token_bytes(self, token_id: int) -> bytes:
        found = super().token_bytes(token_id)
        return b"" if found in self._lacking else found


def test_bytes_that_begin_no_assigned_character_are_not_needed() -> None:
    """SmolLM2's tokenizer has no token for two of them."""
    tokenizer = Without(0xF1, 0xF2)
    grammar = Grammars(tokenizer, tokenizer.vocab_size).compile('{"type": "string"}')
    for seed in range(20):
        grammar.restart()
        assert isinstance(json.loads(written(tokenizer, wander(grammar, tokenizer, random.Random(seed)))), str)
    assert "1 of the bytes" in refusal(Without(0xF0), tokenizer.vocab_size)


def test_tokenizers_that_cannot_write_json_are_refused() -> None:
    backend, size = byte_level_backend(), byte_level().vocab_size
    assert "end-of-sequence" in refusal(Tokenizer(backend, []), size)
    assert "end-of-sequence" in refusal(Tokenizer(backend, [size + 1]), size), "an end that the model has no logit for"
    assert "bytes" in refusal(Tokenizer(backend, [2]), 100), "a model with fewer logits than its tokenizer has tokens"
    grammar = Grammars(Tokenizer(backend, [2]), size - 50).compile('{"type": "object"}')
    assert grammar.allowed().shape == (size - 50,), "those that are cut off are never needed"
