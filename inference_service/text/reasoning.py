"""Which part of what a model writes is its reasoning: told apart by the markers of its format, across tokens.

A format is a table of states. In each state some markers lead to another one, and what stands between markers is the
answer (CONTENT), reasoning (REASONING), or nothing that is meant to be read (any other state: headers of messages).
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from inference_service.text.tokenizer import Tokenizer

CONTENT: Final = "content"
REASONING: Final = "reasoning"
BEGINNING: Final = "beginning"
"""Nothing but white space came yet: a marker that comes first counts, and whatever else comes is content."""

_TOKENS_OF_A_CUE: Final = 64
"""More than a prompt's last markers have, whatever the tokenizer."""
_SPACE: Final = b" \t\r\n"
_CONTROL: Final = b"\xfe"
"""Stands for the first byte of a special token, so that its spelling as ordinary text is no marker. Never in UTF-8."""


class Transition(NamedTuple):
    """A marker and the state behind it. One that is not `consumed` belongs to what follows it."""

    marker: bytes
    state: str
    consumed: bool = True


class Segment(NamedTuple):
    """A piece of a token that is content or reasoning; `opens` says that a new message or block begins with it."""

    reasoning: bool
    token: int
    data: bytes
    visible: bool
    opens: bool


class _Piece(NamedTuple):
    token: int
    data: bytes
    visible: bool


@dataclass(frozen=True)
class ReasoningFormat:
    """How one model sets its reasoning apart. Pure; any thread.

    `initial` is the state that an answer begins in, unless the prompt ends with one of `openings` (Qwen 3's thinking
    models and DeepSeek R1, whose templates open the reasoning): then it begins in the state named with that.
    """

    name: str
    transitions: Mapping[str, Sequence[Transition]]
    initial: str
    openings: Sequence[tuple[bytes, str]] = ()

    def state_after(self, prompt: bytes) -> str:
        """The state that an answer to a prompt begins in; `prompt` is the end of it, as `controlled` makes it."""
        prompt = prompt.rstrip(_SPACE)
        return next((state for opening, state in self.openings if prompt.endswith(opening)), self.initial)

    def state_after_tokens(self, prompt: Sequence[int], tokenizer: Tokenizer) -> str:
        """The same of a prompt's tokens."""
        end = prompt[-_TOKENS_OF_A_CUE:]
        special = map(tokenizer.special_ids.__contains__, end)
        return self.state_after(controlled(zip(tokenizer.pieces(end), special, strict=True)))


def controlled(pieces: Iterable[tuple[bytes, bool]]) -> bytes:
    """The text of tokens, given the bytes of each and whether it is special, with special tokens marked as such."""
    return b"".join(_CONTROL + data[1:] if special and data else data for data, special in pieces)


def tagged(start: str, end: str, tokenizer: Tokenizer, structure: Iterable[str] = ()) -> ReasoningFormat:
    """Reasoning between two tags, at the beginning of the answer; anywhere, if only the model can write the tag.

    That is so where the tag has a special token in it. Other tags may be what an answer is about. `structure` are
    markers in the answer that are no part of it.
    """
    opening, closing = _marker(start, tokenizer), _marker(end, tokenizer)
    anywhere = [Transition(opening, REASONING)] if _CONTROL in opening else []
    anywhere += [Transition(_marker(each, tokenizer), CONTENT) for each in structure]
    return ReasoningFormat(
        start,
        {
            BEGINNING: [Transition(opening, REASONING), *anywhere],
            REASONING: [Transition(closing, CONTENT)],
            CONTENT: anywhere,
        },
        BEGINNING,
        ((opening, REASONING),),
    )


def channelled(
    transitions: Mapping[str, Iterable[tuple[str, str]]], initial: str, tokenizer: Tokenizer
) -> ReasoningFormat:
    """A format that mlx-lm describes by states of its own: "normal" is content, and from "tool" on comes a call."""
    named = {"normal": CONTENT, "reasoning": REASONING, "tool": CONTENT}
    return ReasoningFormat(
        initial,
        {
            named.get(state, state): [
                Transition(_marker(text, tokenizer), named.get(to, to), consumed=to != "tool") for text, to in edges
            ]
            for state, edges in transitions.items()
        },
        named.get(initial, initial),
    )


def harmony(tokenizer: Tokenizer) -> ReasoningFormat:
    """The channels of gpt-oss: what is in `analysis` is reasoning; `final`, and `commentary` on what it does, is not.

    A message is header, `<|message|>`, text, `<|end|>`; the prompt ends inside the header of the first.
    """

    def edges(*pairs: tuple[str, str]) -> list[Transition]:
        return [Transition(_marker(text, tokenizer), state) for text, state in pairs]

    ends = edges(("<|end|>", "header"), ("<|call|>", "header"), ("<|return|>", "header"), ("<|start|>", "header"))
    analysis, final = _marker("<|channel|>analysis<|message|>", tokenizer), _marker("<|message|>", tokenizer)
    return ReasoningFormat(
        "harmony",
        {
            "header": edges(("<|channel|>analysis", "analysis"), ("<|message|>", CONTENT)),
            "analysis": edges(("<|message|>", REASONING)),
            REASONING: ends,
            CONTENT: ends,
        },
        "header",
        ((analysis, REASONING), (final, CONTENT)),
    )


class ReasoningSplit:
    """Tells the tokens of one answer apart as they come. One per turn; not thread-safe.

    What might begin a marker is held back until it is decided. An answer that has no marker where the format begins
    with a header is content: the model does not write the format.
    """

    def __init__(self, of: ReasoningFormat, state: str) -> None:
        self._format = of
        self._state = state
        self._pending: deque[_Piece] = deque()
        self._raw = bytearray()
        """The bytes of the pending pieces, special tokens marked."""
        self._header: list[_Piece] = []
        """What came before the first marker."""
        self.moved = state in (CONTENT, REASONING)
        """There was a marker, be it in the prompt."""
        self._opens = True
        self._tokens = 0
        self.reasoning_tokens = 0
        """Tokens so far that hold nothing of the answer: reasoning, and the markers and headers around it."""
        self.in_reasoning = False
        """Whether the last token was one of them."""

    @property
    def is_reasoning(self) -> bool:
        """Whether what comes next is reasoning, unless a marker says otherwise."""
        return self._state == REASONING

    def feed(self, data: bytes, *, visible: bool) -> list[Segment]:
        """Take one token's bytes; those of special tokens are not visible. What is decided now."""
        before = self._state
        self._pending.append(_Piece(self._tokens, data, visible))
        self._tokens += 1
        self._raw += data if visible else controlled([(data, True)])
        segments = list(self._decide())
        apart = not {before, self._state} <= {BEGINNING, CONTENT}
        self.in_reasoning = apart and all(segment.reasoning for segment in segments)
        self.reasoning_tokens += self.in_reasoning
        return segments

    def finish(self) -> list[Segment]:
        """The rest: generation is over."""
        if self._state == BEGINNING:
            self._state = CONTENT
        segments = list(self._release(len(self._raw)))
        if all(piece.visible or not piece.data for piece in self._header):
            segments[:0] = [Segment(False, *piece, opens=False) for piece in self._header]
        return segments

    def _decide(self) -> Iterator[Segment]:
        while edges := self._format.transitions.get(self._state, ()):
            if self._state == BEGINNING:
                text = bytes(self._raw.lstrip(_SPACE))
                if not any(text.startswith(edge.marker) for edge in edges):
                    if any(edge.marker.startswith(text) for edge in edges):
                        return
                    self._state = CONTENT
                    continue
                self._drop(len(self._raw) - len(text))
            places = [(at, -len(edge.marker), edge) for edge in edges if (at := self._raw.find(edge.marker)) >= 0]
            if not places:
                held = max(beginning_at_end(self._raw, edge.marker) for edge in edges)
                yield from self._release(len(self._raw) - held)
                return
            at, _, found = min(places)
            yield from self._release(at)
            self._drop(len(found.marker) if found.consumed else 0)
            self._opens = self._opens or found.state != self._state
            self._state, self.moved = found.state, True
            self._header.clear()
        yield from self._release(len(self._raw))

    def _release(self, size: int) -> Iterator[Segment]:
        """The first `size` pending bytes are of the present state."""
        for piece in self._drop(size):
            if self._state in (CONTENT, REASONING):
                yield Segment(self.is_reasoning, *piece, opens=self._opens and bool(piece.data))
                self._opens = self._opens and not piece.data
            elif not self.moved:
                self._header.append(piece)

    def _drop(self, size: int) -> list[_Piece]:
        """Take the first `size` bytes out of what is pending."""
        dropped = []
        del self._raw[:size]
        while self._pending and (size or not self._pending[0].data):
            token, data, visible = self._pending.popleft()
            dropped.append(_Piece(token, data[:size], visible))
            if len(data) > size:
                self._pending.appendleft(_Piece(token, data[size:], visible))
            size = max(0, size - len(data))
        return dropped


def _marker(text: str, tokenizer: Tokenizer) -> bytes:
    pieces, at = [], 0
    for start, end in tokenizer.special_spans(text):
        pieces += [(text[at:start].encode(), False), (text[start:end].encode(), True)]
        at = end
    return controlled([*pieces, (text[at:].encode(), False)])


def beginning_at_end(data: bytearray, marker: bytes) -> int:
    """The length of the longest proper beginning of `marker` that `data` ends with."""
    sizes = range(min(len(marker) - 1, len(data)), 0, -1)
    return next((size for size in sizes if data.endswith(marker[:size])), 0)
