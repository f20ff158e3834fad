"""Separates reasoning by markers, which lead between states."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from agentmem.kv.ledger import TokenIds
from inference_service.text.streaming import LAYOUT, PendingPieces, Piece, beginning_at_end
from inference_service.text.tokenizer import Tokenizer

CONTENT: Final = "content"
REASONING: Final = "reasoning"
BEGINNING: Final = "beginning"
"""Anything but a marker is content after white space."""

_TOKENS_OF_A_GENERATION_PROMPT: Final = 64
_SPACE: Final = LAYOUT.encode()
_CONTROL: Final = b"\xfe"
"""Replaces a special token's first byte, so that its spelling is no marker. Never in UTF-8."""


class Transition(NamedTuple):
    """If not `consumed`, the marker belongs to what follows."""

    marker: bytes
    state: str
    consumed: bool = True


class Segment(NamedTuple):
    """`opens` a message or block."""

    reasoning: bool
    piece: Piece
    opens: bool


@dataclass(frozen=True)
class ReasoningFormat:
    """Pure; any thread. An answer begins in `initial`, or after a prompt's end of `openings`, as in Qwen 3's thinking
    models and DeepSeek R1.
    """

    transitions: Mapping[str, Sequence[Transition]]
    initial: str
    openings: Sequence[tuple[bytes, str]] = ()

    def state_after(self, prompt: bytes) -> str:
        """Return the first state after a `controlled` prompt's end."""
        prompt = prompt.rstrip(_SPACE)
        return next((state for opening, state in self.openings if prompt.endswith(opening)), self.initial)

    def state_after_tokens(self, prompt: TokenIds, tokenizer: Tokenizer) -> str:
        end = prompt[-_TOKENS_OF_A_GENERATION_PROMPT:]
        special = map(tokenizer.special_ids.__contains__, end)
        return self.state_after(controlled(zip(tokenizer.pieces(end), special, strict=True)))


def controlled(pieces: Iterable[tuple[bytes, bool]]) -> bytes:
    """Mark special tokens of (token, is special)."""
    return b"".join(_CONTROL + data[1:] if special and data else data for data, special in pieces)


def tagged(start: str, end: str, tokenizer: Tokenizer, structure: Iterable[str] = ()) -> ReasoningFormat:
    """Return a format with two tags; a special start tag counts anywhere. `structure` markers are dropped."""
    opening = (start, REASONING)
    anywhere = [opening] if tokenizer.has_special(start) else []
    anywhere += [(each, CONTENT) for each in structure]
    states = {BEGINNING: [opening, *anywhere], REASONING: [(end, CONTENT)], CONTENT: anywhere}
    return by_states(states, BEGINNING, tokenizer, [opening])


def by_states(
    states: Mapping[str, Iterable[tuple[str, str]]],
    initial: str,
    tokenizer: Tokenizer,
    openings: Iterable[tuple[str, str]] = (),
) -> ReasoningFormat:
    """Return a format by mlx-lm's states: "normal" is content, "tool" begins a call."""
    named = {"normal": CONTENT, "tool": CONTENT}
    transitions = {
        named.get(state, state): [
            Transition(_marker(text, tokenizer), named.get(to, to), consumed=to != "tool") for text, to in edges
        ]
        for state, edges in states.items()
    }
    ends = [(_marker(text, tokenizer), named.get(to, to)) for text, to in openings]
    return ReasoningFormat(transitions, named.get(initial, initial), ends)


class ReasoningSplit:
    """Separates an answer's tokens. Not thread-safe. Possible markers are held back; without a header all is
    content.
    """

    def __init__(self, of: ReasoningFormat, state: str) -> None:
        self._format = of
        self._state = state
        self._pending = PendingPieces()
        self._header: list[Piece] = []
        """Before the first marker."""
        self.moved = state in (CONTENT, REASONING)
        """There was a marker, maybe in the prompt."""
        self._opens = True
        self._tokens = 0
        self.reasoning_tokens = 0
        """Reasoning, markers and headers."""
        self.in_reasoning = False

    @property
    def is_reasoning(self) -> bool:
        return self._state == REASONING

    def feed(self, data: bytes, *, visible: bool) -> list[Segment]:
        """Take one token's bytes; special tokens are not visible."""
        before = self._state
        self._pending.add(Piece(self._tokens, data, visible), controlled([(data, not visible)]))
        self._tokens += 1
        segments = list(self._decide())
        apart = not {before, self._state} <= {BEGINNING, CONTENT}
        self.in_reasoning = apart and all(segment.reasoning for segment in segments)
        self.reasoning_tokens += self.in_reasoning
        return segments

    def finish(self) -> list[Segment]:
        if self._state == BEGINNING:
            self._state = CONTENT
        segments = list(self._release(len(self._pending.raw)))
        if all(piece.visible or not piece.data for piece in self._header):
            segments[:0] = [Segment(False, piece, opens=False) for piece in self._header]
        return segments

    def _decide(self) -> Iterator[Segment]:
        raw = self._pending.raw
        while edges := self._format.transitions.get(self._state, ()):
            if self._state == BEGINNING:
                text = bytes(raw.lstrip(_SPACE))
                if not any(text.startswith(edge.marker) for edge in edges):
                    if any(edge.marker.startswith(text) for edge in edges):
                        return
                    self._state = CONTENT
                    continue
                self._pending.take(len(raw) - len(text))
            places = [(at, -len(edge.marker), edge) for edge in edges if (at := raw.find(edge.marker)) >= 0]
            if not places:
                held = max(beginning_at_end(raw, edge.marker) for edge in edges)
                yield from self._release(len(raw) - held)
                return
            at, _, found = min(places)
            yield from self._release(at)
            self._pending.take(len(found.marker) if found.consumed else 0)
            self._opens = self._opens or found.state != self._state
            self._state, self.moved = found.state, True
            self._header.clear()
        yield from self._release(len(raw))

    def _release(self, size: int) -> Iterator[Segment]:
        for piece in self._pending.take(size):
            if self._state in (CONTENT, REASONING):
                yield Segment(self.is_reasoning, piece, opens=self._opens and bool(piece.data))
                self._opens = self._opens and not piece.data
            elif not self.moved:
                self._header.append(piece)


def _marker(text: str, tokenizer: Tokenizer) -> bytes:
    pieces, at = [], 0
    for start, end in tokenizer.special_spans(text):
        pieces += [(text[at:start].encode(), False), (text[start:end].encode(), True)]
        at = end
    return controlled([*pieces, (text[at:].encode(), False)])
