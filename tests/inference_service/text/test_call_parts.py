"""Arguments of calls while they are written: what was told is what the whole call has, or the call is text."""

import json
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_service.families.chats import OBJECT
from inference_service.text.answering import AnswerDelta, AnswerStream
from inference_service.text.tool_calls import CallSyntax

SYNTAX = CallSyntax("json_tools", b"<c>", b"</c>", lambda text, _: json.loads(text), OBJECT)
CALL = '<c>{"name": "look", "arguments": {"at": "the \\"b\\\\oat\\" 🌊", "n": [1, {"a": "}"}]}}</c>'


def said(pieces: Sequence[bytes], syntax: CallSyntax = SYNTAX, *, ended: bool = True) -> list[AnswerDelta]:
    stream = AnswerStream((), syntax)
    return [*(stream.feed(piece) for piece in pieces), stream.finish(ended=ended)]


def told(deltas: Sequence[AnswerDelta]) -> dict[str, tuple[str, str]]:
    """Names and arguments of the calls that had parts, by their ids."""
    found: dict[str, tuple[str, str]] = {}
    for part in (part for delta in deltas for part in delta.parts):
        name, arguments = found.get(part.id, (part.name, ""))
        assert part.name in ("", name) and bool(part.name) == (part.id not in found)
        found[part.id] = name, arguments + part.arguments
    return found


def pieces_of(text: str, cuts: Sequence[int]) -> list[bytes]:
    data = text.encode()
    places = sorted({0, len(data), *(cut % len(data) for cut in cuts)})
    return [data[a:b] for a, b in pairwise(places)]


@given(st.lists(st.integers(0, 400), max_size=60))
def test_parts_are_what_the_whole_call_has(cuts: list[int]) -> None:
    """However tokens cut it, also inside of characters; two calls one after the other are told apart."""
    deltas = said(pieces_of(f"Well. {CALL}\n{CALL.replace('look', 'see')}", cuts))
    calls = [call for delta in deltas for call in delta.calls]
    assert [call.name for call in calls] == ["look", "see"]
    assert "".join(delta.text for delta in deltas) == "Well."
    for call in calls:
        assert json.loads(call.arguments_json)["n"] == [1, {"a": "}"}]
    for identifier, (name, arguments) in told(deltas).items():
        (call,) = (call for call in calls if call.id == identifier)
        assert (call.name, call.arguments_json) == (name, arguments)


def test_they_come_as_they_are_generated() -> None:
    deltas = said([b'<c>{"name": "look", "arg', b'uments": {"at"', b': "the', b' boat"}', b"}</c>"])
    assert [[part.arguments for part in delta.parts] for delta in deltas] == [
        [],
        ['{"at"'],
        [': "the'],
        [' boat"}'],
        [],
        [],
    ]
    ids = {part.id for delta in deltas for part in delta.parts} | {call.id for delta in deltas for call in delta.calls}
    assert len(ids) == 1


@pytest.mark.parametrize(
    "text",
    [
        '<c>{"arguments": {"a": 1}, "name": "look"}</c>',
        '<c>{"name": "look", "arguments": [1]}</c>',
        '<c>{"name": "look"}</c>',
        '<c>{"name": look, "arguments": {}}</c>',
        '<c>{"name": "\\u12", "arguments": {}}</c>',
    ],
)
def test_calls_that_do_not_begin_so_have_none(text: str) -> None:
    assert not told(said([text[:20].encode(), text[20:].encode()]))


def test_what_turns_out_to_be_no_call_is_text_although_parts_were_told() -> None:
    for text, ended in (('<c>{"name": "look", "arguments": {"a": 1}, oops}</c>', True), (CALL[:-20], False)):
        deltas = said([text[:40].encode(), text[40:].encode()], ended=ended)
        assert told(deltas)
        assert not any(delta.calls for delta in deltas)
        assert "".join(delta.text for delta in deltas) == text


def test_bytes_that_are_no_text_end_the_parts_and_not_the_call() -> None:
    """A byte-level model may write them; the whole call has a replacement character."""
    deltas = said([b'<c>{"name": "look", "arguments": {"a": "', b"\xf0\x9f", b"x", b'"}}</c>'])
    (call,) = (call for delta in deltas for call in delta.calls)
    assert json.loads(call.arguments_json) == {"a": "\ufffdx"}


def test_other_forms_have_no_parts() -> None:
    other = CallSyntax("other", b"<c>", b"</c>", lambda text, _: json.loads(text))
    assert not told(said([CALL[:40].encode(), CALL[40:].encode()], other))
