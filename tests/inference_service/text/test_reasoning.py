"""Reasoning told apart from the answer, in the formats that models have, wherever tokens begin and end."""

import json
import re
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from inference_service.families import chats
from inference_service.text.answering import AnswerStream
from inference_service.text.reasoning import ReasoningFormat, ReasoningSplit, by_states, controlled, tagged
from inference_service.text.tokenizer import Tokenizer
from inference_service.text.tool_calls import CallSyntax
from tests.inference_service.real_tokenizers import END, byte_level_backend

SPECIAL = [
    *("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>"),
    *("<|channel>", "<channel|>", "[THINK]", "[/THINK]"),
    *("<|eom|>", "<|eot|>"),
]


def _tokenizer() -> Tokenizer:
    backend = byte_level_backend()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    backend.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in ("<think>", "</think>")])
    return Tokenizer(backend, [backend.token_to_id(END)])


TOKENIZER = _tokenizer()
TAGS = tagged("<think>", "</think>", TOKENIZER)
BRACKETS = tagged("[THINK]", "[/THINK]", TOKENIZER)
GEMMA = tagged("<|channel>thought", "<channel|>", TOKENIZER)
HARMONY = by_states(chats.HARMONY, "header", TOKENIZER, chats.HARMONY_OPENINGS)
MUSE = by_states(
    {
        "header": [("to=self<|message|>", "reasoning"), ("to=user<|message|>", "normal"), ("<calls>", "tool")],
        "reasoning": [("<|eom|>", "header")],
        "normal": [("<|eom|>", "header"), ("<|eot|>", "normal")],
    },
    "header",
    TOKENIZER,
)
CALLS = CallSyntax(
    "test", b"<tool_call>", b"</tool_call>", lambda text, _tools: {"name": text, "arguments": json.loads("{}")}
)


class Answer(NamedTuple):
    reasoning: str
    text: str
    calls: tuple[str, ...] = ()
    stop: str | None = None
    kept: int = 0
    reasoning_tokens: int = 0


def pieces_of(text: str) -> list[bytes]:
    """Special tokens whole, all else byte by byte."""
    pieces: list[bytes] = []
    at = 0
    for start, end in [*TOKENIZER.special_spans(text), (len(text), len(text))]:
        pieces += [bytes([byte]) for byte in text[at:start].encode()]
        pieces += [text[start:end].encode()] if end > start else []
        at = end
    return pieces


def joined(pieces: list[bytes], places: list[int]) -> list[bytes]:
    """The same bytes in longer tokens, cut at `places`; special tokens stay tokens of their own."""
    tokens: list[bytes] = []
    for number, piece in enumerate(pieces):
        special = TOKENIZER.is_special(piece)
        if special or not tokens or TOKENIZER.is_special(tokens[-1]) or number in places:
            tokens.append(piece)
        else:
            tokens[-1] += piece
    return tokens


def answer(
    of: ReasoningFormat | None,
    tokens: list[bytes],
    *,
    prompt: str = "",
    stops: tuple[str, ...] = (),
    syntax: CallSyntax | None = None,
    ended: bool = True,
) -> Answer:
    """Feed tokens until a stop string matches, as the engine does, and finish."""
    split = None
    if of is not None:
        ids = TOKENIZER.encode(prompt, parse_special=True)
        state = of.state_after(controlled((TOKENIZER.token_bytes(i), i in TOKENIZER.special_ids) for i in ids))
        split = ReasoningSplit(of, state)
    stream, said = AnswerStream(stops, syntax, (), split), []
    for token in tokens:
        said.append(stream.feed(token, visible=not TOKENIZER.is_special(token)))
        assert not (said[-1].reasoning and said[-1].text and split is not None and split.is_reasoning), "in order"
        if stream.matched is not None:
            break
    if ended and stream.matched is None:
        said.append(stream.feed(b"", visible=False))
    said.append(stream.finish(ended=ended))
    return Answer(
        "".join(each.reasoning for each in said),
        "".join(each.text for each in said),
        tuple(call.name for each in said for call in each.calls),
        stream.matched,
        stream.tokens_before_stop(),
        stream.reasoning_tokens,
    )


ANSWERS = [
    (TAGS, "", "<think>\nI muse.\n\n</think>\n\nHello 🌍!", ("I muse.", "Hello 🌍!")),
    (TAGS, "", "\n<think>I</think>", ("I", "")),
    (TAGS, "", "Hello", ("", "Hello")),
    (TAGS, "", " \n", ("", " \n")),
    (TAGS, "", "\n<thin", ("", "\n<thin")),
    (TAGS, "", "A tag is <think>so</think>.", ("", "A tag is <think>so</think>.")),
    (TAGS, "", "<think>a</think>b<think>c</think>", ("a", "b<think>c</think>")),
    (TAGS, "", "<think>never ends </thin", ("never ends </thin", "")),
    (TAGS, "<|im_start|>assistant\n<think>\n", "I muse.</think>Hello", ("I muse.", "Hello")),
    (TAGS, "<|im_start|>assistant\n<think>\n\n</think>\n\n", "Hello", ("", "Hello")),
    (BRACKETS, "", "[THINK]a[/THINK]b", ("a", "b")),
    (BRACKETS, "", "one [THINK]a[/THINK] two[THINK]b[/THINK]", ("a\n\nb", "one\n\ntwo")),
    (GEMMA, "", "<|channel>thought\nI muse.\n<channel|>Hello", ("I muse.", "Hello")),
    (GEMMA, "", "<|channel>thought\n<channel|>Hello", ("", "Hello")),
    (GEMMA, "", "Hi<|channel>thought\nmore<channel|>there", ("more", "Hi\n\nthere")),
    (
        HARMONY,
        "<|start|>assistant",
        "<|channel|>analysis<|message|>I muse.<|end|><|start|>assistant<|channel|>final<|message|>Hello there",
        ("I muse.", "Hello there"),
    ),
    (HARMONY, "<|start|>assistant", "<|channel|>final<|message|>Hello", ("", "Hello")),
    (HARMONY, "<|start|>assistant<|channel|>final<|message|>", "Hello", ("", "Hello")),
    (HARMONY, "<|start|>assistant<|channel|>analysis<|message|>", "I muse.<|end|>", ("I muse.", "")),
    (
        HARMONY,
        "<|start|>assistant",
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary<|message|>First.<|end|>"
        "<|start|>assistant<|channel|>analysis<|message|>b<|end|><|start|>assistant<|channel|>final<|message|>Then.",
        ("a\n\nb", "First.\n\nThen."),
    ),
    (HARMONY, "<|start|>assistant", "no format at all", ("", "no format at all")),
    (HARMONY, "<|start|>assistant", "<|channel|>analy", ("", "")),
    (MUSE, "", "to=self<|message|>hm<|eom|>to=user<|message|>Hello<|eot|>", ("hm", "Hello")),
]


@pytest.mark.parametrize(("of", "prompt", "text", "expected"), ANSWERS)
@given(places=st.lists(st.integers(0, 200), max_size=12))
@example(places=list(range(500)))
@settings(max_examples=20)
def test_formats_however_tokens_cut_them(
    of: ReasoningFormat, prompt: str, text: str, expected: tuple[str, str], places: list[int]
) -> None:
    answered = answer(of, joined(pieces_of(text), places), prompt=prompt)
    assert (answered.reasoning, answered.text) == expected


def test_the_spelling_of_a_special_token_is_no_marker() -> None:
    spelled = [b"<", b"|end|>", b" and ", b"<|channel|>final<|message|>"[:11], b"x"]
    tokens = [*pieces_of("<|channel|>final<|message|>"), *spelled]
    split = ReasoningSplit(HARMONY, "header")
    stream, said = AnswerStream((), None, (), split), []
    for number, token in enumerate(tokens):
        said.append(stream.feed(token, visible=number > 6 or not TOKENIZER.is_special(token)))
    said.append(stream.finish(ended=True))
    assert "".join(each.text for each in said) == "<|end|> and <|channel|>x"
    user = [(b"say <|start|>assistant", False)]
    assert HARMONY.state_after(controlled(user)) == "header"
    assert BRACKETS.state_after(controlled([(b"[THINK]", False)])) == BRACKETS.initial
    assert BRACKETS.state_after(controlled([(b"[THINK]", True)])) == "reasoning"


def test_stop_strings_and_calls_are_looked_for_in_the_answer_only() -> None:
    tokens = pieces_of("<think>stop <tool_call>no</tool_call></think>go stop on")
    answered = answer(TAGS, tokens, stops=("stop",), syntax=CALLS)
    assert answered[:4] == ("stop <tool_call>no</tool_call>", "go ", (), "stop")
    assert b"".join(tokens[: answered.kept]).endswith(b"</think>go "), "the ledger keeps what is before the stop string"
    called = answer(TAGS, pieces_of("<think>hm</think>\nI look.\n<tool_call>f</tool_call>"), syntax=CALLS)
    assert called[:3] == ("hm", "I look.", ("f",))


def test_a_stop_string_does_not_span_reasoning() -> None:
    text = "one s[THINK]a[/THINK]top"
    assert answer(BRACKETS, pieces_of(text), stops=("stop",))[:4] == ("a", "one s\n\ntop", (), None)


def test_tokens_of_the_reasoning_are_counted() -> None:
    thought = answer(TAGS, [b"<think>", b"\n", b"I", b" muse", b"</think>", b"\n\n", b"Hello", b"."])
    assert thought.reasoning_tokens == 5
    assert answer(TAGS, [b"\n", b"Hello", b"."]).reasoning_tokens == 0
    cut = answer(TAGS, [b"<think>", b"I", b" muse"], ended=False)
    assert (cut.reasoning, cut.text, cut.reasoning_tokens) == ("I muse", "", 3)
    mixed = answer(TAGS, [b"<think>", b"I", b"</think>He", b"llo"])
    assert (mixed.text, mixed.reasoning_tokens) == ("Hello", 2)


@given(
    text=st.lists(st.sampled_from(["<think>", "</think>", "<", "think", "\n", " ", "é🙂", "a"]), max_size=8).map(
        "".join
    ),
    places=st.lists(st.integers(0, 60), max_size=10),
    opened=st.booleans(),
)
@example(text="<think>a</think>\n", places=[], opened=False)
@example(text="</think>\n", places=[], opened=True)
@example(text="<think></think>\n", places=[], opened=False)
def test_tags_agree_with_looking_at_the_whole_text(text: str, places: list[int], opened: bool) -> None:
    bounds = [0, *sorted(place % (len(text.encode()) + 1) for place in places), len(text.encode())]
    tokens = [text.encode()[a:b] for a, b in pairwise(bounds)]
    answered = answer(TAGS, tokens, prompt="<think>\n" if opened else "")
    found = re.fullmatch(r"(?s)(?:\s*<think>)?(?P<r>.*?)(?:</think>(?P<t>.*))?" if opened else "", text)
    if not opened:
        found = re.fullmatch(r"(?s)\s*<think>(?P<r>.*?)(?:</think>(?P<t>.*))?", text)
    expected = ("", text)
    if found is not None:
        reasoning = text.split("</think>", 1)[0] if opened else found["r"]
        expected = (reasoning.strip(" \t\r\n"), (found["t"] or "").lstrip(" \t\r\n"))
    assert (answered.reasoning, answered.text) == expected
