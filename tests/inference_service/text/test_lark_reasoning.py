"""Reasoning before answers that are held: free up to its end, and nothing of it where there is none."""

import json
import random
from functools import cache

import pytest
from tokenizers import AddedToken

from inference_service.domain import HeldAnswer, HeldTool
from inference_service.families import chats
from inference_service.text.grammar import Grammar, Grammars
from inference_service.text.lark import reasoning_rules
from inference_service.text.reasoning import BEGINNING, CONTENT, REASONING, by_states, tagged
from inference_service.text.tokenizer import Tokenizer
from tests.inference_service.real_tokenizers import byte_level_backend
from tests.inference_service.text.test_grammar import wander
from tests.inference_service.text.test_lark import END, follows, syntax

SCHEMA = '{"enum": ["yes", "no"]}'
TOOL = HeldTool("go", '{"type": "object", "properties": {}, "additionalProperties": false}', "tools[0]", strict=True)
CALL = '<tool_call>{"name": "go", "arguments": {}}</tool_call>'
THOUGHT = 'Hm: <tool_call> "no", {\n\n}'


@cache
def tokenizer(special: bool) -> Tokenizer:
    backend = byte_level_backend()
    backend.add_tokens([AddedToken(tag, special=special, normalized=False) for tag in ("<think>", "</think>")])
    return Tokenizer(backend, [END])


def held(state: str, made: Tokenizer, answer: HeldAnswer | None = None) -> Grammar:
    grammars = Grammars(made, made.vocab_size)
    before = reasoning_rules(tagged("<think>", "</think>", made), state, made)
    if answer is None:
        return grammars.compile(SCHEMA, reasoning=before)
    return grammars.compile_answer(answer, syntax("json_tools"), before)


def taken(grammar: Grammar, text: str, made: Tokenizer) -> tuple[bool, bool]:
    """Return whether all of it is allowed, then the end."""
    token_ids = made.encode(text, parse_special=True)
    whole = follows(grammar, token_ids) == len(token_ids)
    return whole, whole and bool(grammar.allowed()[END])


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize(
    ("answer", "text"), [(None, '"yes"'), (HeldAnswer((TOOL,), required=True), CALL)], ids=["schema", "required"]
)
def test_an_answer_is_held_behind_its_reasoning(answer: HeldAnswer | None, text: str, special: bool) -> None:
    made = tokenizer(special)
    for state, prompt_opened in ((REASONING, True), (BEGINNING, False)):
        opening = "" if prompt_opened else "<think>"
        assert taken(held(state, made, answer), f"{opening}{THOUGHT}</think>\n\n{text}", made) == (True, True)
        assert taken(held(state, made, answer), f"{opening}</think>{text}", made) == (True, True)
        assert taken(held(state, made, answer), f"{opening}{THOUGHT}</think>Well", made)[0] is False
        assert taken(held(state, made, answer), f"{opening}{THOUGHT}", made) == (True, False), "it must answer"
        assert taken(held(state, made, answer), text, made) == (True, not prompt_opened)
    assert taken(held(CONTENT, made, answer), text, made) == (True, True)
    assert taken(held(CONTENT, made, answer), "<think>", made)[0] is False


@pytest.mark.parametrize("special", [True, False])
def test_text_is_free_behind_reasoning_and_calls_in_it_are_none(special: bool) -> None:
    made, free = tokenizer(special), HeldAnswer((TOOL,))
    grammar = held(REASONING, made, free)
    assert taken(grammar, f"{THOUGHT}</think>\n\nI go.\n{CALL}", made) == (True, True)
    assert taken(held(REASONING, made, free), f"{THOUGHT}</think>{THOUGHT}", made)[0] is False
    assert taken(held(BEGINNING, made, free), f"<think>hm</think>I go.{CALL}", made) == (True, True)


@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_thought_an_answer_comes(seed: int) -> None:
    made = tokenizer(True)
    grammar = held(BEGINNING, made)
    opening = made.encode("<think>so</think>", parse_special=True)
    assert follows(grammar, opening) == len(opening)
    token_ids = wander(grammar, made, random.Random(seed), free=True)
    text = made.decode([i for i in token_ids if i != END]).decode()
    assert json.loads(text) in ("yes", "no")


def test_formats_of_more_than_two_tags_are_not_thought_in() -> None:
    made = tokenizer(True)
    assert reasoning_rules(by_states(chats.HARMONY, "header", made), "header", made) is None
