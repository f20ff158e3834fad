"""Tokens as text and calls, against an oracle that looks at the whole text at once."""

import json
import re
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from inference_service.families.chats import OBJECT
from inference_service.text.answering import AnswerDelta, AnswerStream
from inference_service.text.streaming import TextStream
from inference_service.text.tool_calls import CallSyntax


def parse(text: str, _tools: Any) -> Any:
    """A call is a number, several are numbers with commas."""
    calls = [{"name": f"f{int(number)}", "arguments": {}} for number in text.split(",")]
    return calls if len(calls) > 1 else calls[0]


CLOSED = CallSyntax("test", b"<c>", b"</c>", parse)
OPEN = CallSyntax("test", b"[C]", b"", parse)


JSON = CallSyntax("test", b"<c>", b"</c>", lambda text, _: json.loads(text), OBJECT)


class Answer(NamedTuple):
    text: str
    names: list[str]
    stop: str | None
    kept: int
    fed: int


def answer(
    pieces: list[bytes],
    syntax: CallSyntax | None = CLOSED,
    stops: tuple[str, ...] = (),
    hidden: frozenset[bytes] = frozenset(),
    *,
    ended: bool = True,
) -> Answer:
    """Feed tokens until a stop string matches, as the engine does, and finish."""
    stream, said = AnswerStream(stops, syntax), []
    fed = 0
    for piece in pieces:
        fed += 1
        said.append(stream.feed(piece, visible=piece not in hidden))
        if stream.matched is not None:
            break
    said.append(stream.finish(ended=ended))
    names = [call.name for each in said for call in each.calls]
    assert stream.called == bool(names)
    return Answer("".join(each.text for each in said), names, stream.matched, stream.tokens_before_stop(), fed)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    bounds = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in pairwise(bounds)]


def oracle(text: str) -> tuple[str, list[str]]:
    """Text and calls of a whole answer with the closed syntax: innermost pairs of markers, white space cut off."""
    parts: list[str] = []
    calls: list[str] = []
    at = 0
    for match in re.finditer(r"<c>((?:(?!<c>|</c>).)*)</c>", text, re.DOTALL):
        try:
            parsed = parse(match[1], None)
        except ValueError:
            continue
        parts.append(text[at : match.start()])
        calls += [each["name"] for each in (parsed if isinstance(parsed, list) else [parsed])]
        at = match.end()
    layout = " \t\r\n"
    parts.append(text[at:])
    for index in range(len(parts)):
        parts[index] = parts[index].lstrip(layout) if index else parts[index]
        parts[index] = parts[index].rstrip(layout) if index < len(parts) - 1 else parts[index]
    return "".join(parts), calls


fragments = st.lists(
    st.sampled_from(
        ["<c>1</c>", "<c>2,3</c>", "<c>x</c>", "<c>", "</c>", "<c", "</", "<", "\n", " ", "a", "é🙂", "12"]
    ),
    max_size=8,
).map("".join)
places = st.lists(st.integers(0, 60), max_size=10)


@given(text=fragments, places=places)
@example(text="hello\n<c>1</c>\n<c>2</c>\n", places=[])
@example(text="<c>x<c>1</c></c>", places=[1, 2, 3])
@example(text="<c>1</c>a <c>", places=[])
def test_any_cut_into_tokens_gives_the_text_and_the_calls(text: str, places: list[int]) -> None:
    answered = answer(cut(text.encode(), places), ended=False)
    assert (answered.text, answered.names) == oracle(text)
    assert answered.kept == answered.fed


@given(text=fragments, places=places, stops=st.lists(st.sampled_from(["a", "1", "é", "<", "c>1", "\n", "a<c"])))
def test_how_tokens_are_cut_does_not_matter_with_stop_strings(text: str, places: list[int], stops: list[str]) -> None:
    data = text.encode()
    one_by_one = answer([data[i : i + 1] for i in range(len(data))], stops=tuple(stops))
    answered = answer(cut(data, places), stops=tuple(stops))
    assert answered[:3] == one_by_one[:3]


@given(text=fragments, places=places, stops=st.lists(st.sampled_from(["a", "1", "é", "<", "c>1", "\n", "a<c"])))
def test_without_a_syntax_or_a_call_it_is_the_text_stream(text: str, places: list[int], stops: list[str]) -> None:
    pieces = cut(text.encode(), places)
    plain, parts, fed = TextStream(stops), [], 0
    for piece in pieces:
        fed += 1
        parts.append(plain.feed(piece))
        if plain.matched is not None:
            break
    wanted = Answer("".join([*parts, plain.finish()]), [], plain.matched, plain.tokens_before_stop(), fed)
    assert answer(pieces, None, tuple(stops)) == wanted
    looked = answer(pieces, CallSyntax("none", b"<c>", b"</c>", lambda *_: {}), tuple(stops))
    assert looked[:4] == wanted[:4], "what is no call is text as if nobody had looked; only it may come later"


def test_what_may_begin_a_call_is_held_back_and_a_call_comes_whole() -> None:
    stream = AnswerStream((), CLOSED)
    assert stream.feed(b"so <") == AnswerDelta(text="so")
    assert stream.feed(b"b>") == AnswerDelta(text=" <b>")
    assert stream.feed(b"\n<c>4") == AnswerDelta(text="")
    assert stream.feed(b"2<") == AnswerDelta(text="")
    _, text, (call,), _ = stream.feed(b"/c>\nand")
    assert (text, call.name) == ("and", "f42")
    assert stream.feed(b"<c>1") == AnswerDelta(text="")
    assert stream.finish(ended=False) == AnswerDelta(text="<c>1")


@pytest.mark.parametrize(
    ("text", "ended", "wanted"),
    [
        ("[C]1", True, ("", ["f1"])),
        ("hi [C]1,2", True, ("hi", ["f1", "f2"])),
        ("hi [C]1", False, ("hi [C]1", [])),
        ("hi [C]x", True, ("hi [C]x", [])),
        ("hi [C]x[C]2", True, ("hi [C]x", ["f2"])),
        ("hi [", True, ("hi [", [])),
    ],
)
def test_a_call_without_an_end_marker_goes_to_the_end_of_the_turn(text: str, ended: bool, wanted: Any) -> None:
    for pieces in ([text.encode()], [char.encode() for char in text]):
        answered = answer(pieces, OPEN, ended=ended)
        assert (answered.text, answered.names) == wanted


def test_a_turn_that_ended_inside_a_call_may_have_left_its_marker_out() -> None:
    assert answer([b"<c>7"], ended=True).names == ["f7"]
    cut_short = answer([b"<c>7"], ended=False)
    assert (cut_short.text, cut_short.names) == ("<c>7", []), "half of the arguments may mean something else"


SPECIAL = frozenset({b"<c>", b"</c>", b"<s>"})


def test_markers_that_are_special_tokens_are_found_and_others_not_shown() -> None:
    answered = answer([b"a", b"<s>", b"<c>", b"1", b",2", b"</c>", b"<s>", b"b"], hidden=SPECIAL)
    assert (answered.text, answered.names) == ("ab", ["f1", "f2"])
    failed = answer([b"a", b"<s>", b"<c>", b"x", b"</c>", b"b"], hidden=SPECIAL)
    assert (failed.text, failed.names) == ("axb", []), "as if nobody had looked for calls"


def test_special_tokens_inside_a_call_are_the_parsers() -> None:
    seen: list[str] = []
    syntax = CallSyntax("test", b"<c>", b"</c>", lambda text, _: seen.append(text))
    answer([b"<c>", b"1", b"<s>", b"2", b"</c>"], syntax, hidden=SPECIAL)
    assert seen == ["1<s>2"]


@pytest.mark.parametrize(
    ("pieces", "stops", "text", "names", "kept"),
    [
        ([b"<c>", b"12", b"</c>"], ("1",), "", ["f12"], 3),
        ([b"a", b"<c>1", b"</c>", b"b", b"c", b"d"], ("ab", "c"), "ab", ["f1"], 4),
        ([b"a", b"<c>", b"x1y", b"</c>", b"z"], ("1",), "a<c>x", [], 2),
        ([b"a", b"<c>", b"x", b"1y"], ("1",), "a<c>x", [], 3),
        ([b"a", b"<", b"c>1</c>"], ("<",), "a", ["f1"], 3),
        ([b"a", b"<", b"b"], ("<",), "a", [], 1),
        ([b"a", b"<c>1</c>", b"<s>", b"b", b"<s>", b"END"], ("END",), "ab", ["f1"], 5),
    ],
    ids=["inside", "across", "no call after all", "no call at the end", "marker first", "no marker", "after a call"],
)
def test_stop_strings(pieces: list[bytes], stops: tuple[str, ...], text: str, names: list[str], kept: int) -> None:
    answered = answer(pieces, stops=stops, hidden=SPECIAL - {b"<c>", b"</c>"}, ended=False)
    assert (answered.text, answered.names, answered.kept) == (text, names, kept)


def test_ids_are_unique_in_a_turn() -> None:
    syntax = CallSyntax("test", b"<c>", b"</c>", lambda text, _: json.loads(text))
    stream = AnswerStream((), syntax)
    piece = b'<c>{"name": "f", "id": "x"}</c>'
    ids = [call.id for _ in range(3) for call in stream.feed(piece).calls]
    assert ids[0] == "x"
    assert len(set(ids)) == 3


@pytest.mark.parametrize("said", ["</c>", '\\" </c> <c> \\"', "\\\\", '\\\\\\"</c>', "a<c>b</c>c</c>"])
@given(places=st.lists(st.integers(0, 200), max_size=8))
def test_a_marker_in_a_string_of_a_call_is_what_the_call_says(said: str, places: list[int]) -> None:
    call = f'<c>{{"name": "f", "arguments": {{"text": "{said}"}}}}</c>'
    stream, heard = AnswerStream((), JSON), []
    for piece in cut(f"so {call} and {call}.".encode(), places):
        heard.append(stream.feed(piece))
    heard.append(stream.finish(ended=True))
    calls = [call for part in heard for call in part.calls]
    assert [json.loads(call.arguments_json) for call in calls] == [{"text": json.loads(f'"{said}"')}] * 2
    assert "".join(part.text for part in heard) == "soand."


@pytest.mark.parametrize("ended", [True, False])
def test_a_call_behind_one_whose_string_never_ends_is_found(ended: bool) -> None:
    broken, good = '<c>{"name": "f</c>', '<c>{"name": "g", "arguments": {}}</c>'
    stream = AnswerStream((), JSON)
    said = [stream.feed(f"{broken} and {good} so".encode()), stream.finish(ended=ended)]
    text = "".join(part.text for part in said)
    if ended:
        assert (text, [call.name for part in said for call in part.calls]) == (f"{broken} andso", ["g"])
    else:
        assert text == f"{broken} and {good} so"
