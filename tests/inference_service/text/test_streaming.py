from itertools import pairwise
from typing import NamedTuple

from hypothesis import example, given
from hypothesis import strategies as st

from inference_service.text.streaming import TextStream


class Streamed(NamedTuple):
    parts: list[str]
    stream: TextStream
    fed: int

    @property
    def text(self) -> str:
        return "".join(self.parts)


def stream(pieces: list[bytes], stops: list[str]) -> Streamed:
    """Feed tokens until a stop string matches, as the engine does, and finish."""
    text_stream, parts = TextStream(stops), []
    fed = 0
    for piece in pieces:
        fed += 1
        parts.append(text_stream.feed(piece))
        if text_stream.matched is not None:
            break
    return Streamed([*parts, text_stream.finish()], text_stream, fed)


def first_complete(data: bytes, stops: list[str]) -> tuple[int, str] | None:
    """Where the first stop string to be complete begins, by trying every prefix of the text."""
    for end in range(len(data) + 1):
        complete = [stop for stop in stops if data[:end].endswith(stop.encode())]
        if complete:
            stop = max(complete, key=lambda stop: len(stop.encode()))
            return end - len(stop.encode()), stop
    return None


@st.composite
def tokens_and_stops(draw: st.DrawFn) -> tuple[list[bytes], list[str]]:
    """Text of few letters, cut anywhere (inside characters too), with empty tokens, and stops made of its letters."""
    letters = "abé🙂"
    text = draw(st.text(alphabet=letters, max_size=20)).encode()
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    bounds = [0, *cuts, len(text)]
    pieces = [text[a:b] for a, b in pairwise(bounds)]
    return pieces, draw(st.lists(st.text(alphabet=letters, min_size=1, max_size=4), max_size=4))


@given(case=tokens_and_stops())
@example(case=([b"abc", b"d"], ["abcd", "bc"]))
@example(case=([b"ab", b"c"], ["ab", "abc"]))
@example(case=([b"a", b"a", b"b"], ["aab"]))
@example(case=(["é".encode()[:1], "é".encode()[1:]], ["é"]))
@example(case=([b"abcd"], ["abcd", "bc"]))
@example(case=([b"x", b"aab"], ["aab", "b"]))
@example(case=([b"x", b"", b"", b"END", b""], ["END"]))
@example(case=([b"END"], ["END"]))
def test_output_is_the_text_up_to_the_first_complete_stop_string(case: tuple[list[bytes], list[str]]) -> None:
    pieces, stops = case
    data = b"".join(pieces)
    found = first_complete(data, stops)
    streamed = stream(pieces, stops)
    if found is None:
        assert streamed.text == data.decode()
        assert streamed.stream.matched is None
        assert streamed.stream.tokens_before_stop() == len(pieces)
    else:
        start, stop = found
        assert streamed.text == data[:start].decode()
        assert streamed.stream.matched == stop
        ends = [sum(map(len, pieces[: i + 1])) for i in range(streamed.fed)]
        assert streamed.stream.tokens_before_stop() == sum(end <= start for end in ends)


@given(case=tokens_and_stops())
def test_nothing_of_a_stop_string_is_emitted_before_it_is_decided(case: tuple[list[bytes], list[str]]) -> None:
    pieces, stops = case
    text_stream, emitted = TextStream(stops), ""
    for fed, piece in enumerate(pieces):
        emitted += text_stream.feed(piece)
        data = b"".join(pieces[: fed + 1])
        if text_stream.matched is not None:
            break
        pending = [s for s in stops for n in range(1, len(s.encode())) if data.endswith(s.encode()[:n])]
        longest = max((n for s in stops for n in range(len(s.encode())) if data.endswith(s.encode()[:n])), default=0)
        assert len(emitted.encode()) <= len(data) - longest
        if not pending:
            assert emitted == data.decode(errors="ignore"), "what no stop string can begin with is not held back"


@given(pieces=st.lists(st.binary(max_size=5), max_size=12), stops=st.lists(st.text(min_size=1, max_size=3), max_size=3))
def test_ill_formed_bytes_become_replacement_characters(pieces: list[bytes], stops: list[str]) -> None:
    data = b"".join(pieces)
    found = first_complete(data, stops)
    streamed = stream(pieces, stops)
    assert streamed.text == (data if found is None else data[: found[0]]).decode(errors="replace")


@given(pieces=st.lists(st.binary(max_size=5), max_size=12))
def test_without_stops_only_an_open_character_waits(pieces: list[bytes]) -> None:
    text_stream, emitted = TextStream(), ""
    for fed, piece in enumerate(pieces):
        emitted += text_stream.feed(piece)
        data = b"".join(pieces[: fed + 1])
        assert data.decode(errors="replace").startswith(emitted)
        assert len(data.decode(errors="replace")) - len(emitted) <= 3
    assert emitted + text_stream.finish() == b"".join(pieces).decode(errors="replace")
