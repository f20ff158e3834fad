"""Bytes of generated tokens, pending until decided, then text."""

import codecs
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

LAYOUT = " \t\r\n"
_BETWEEN = "\n\n"


class Piece(NamedTuple):
    """Bytes of a token or a part of it. `token` counts from 0; special tokens are not `visible`."""

    token: int
    data: bytes
    visible: bool


class PendingPieces:
    """A queue of undecided pieces. Markers are searched in their bytes, `raw`."""

    def __init__(self) -> None:
        self._pieces: deque[Piece] = deque()
        self.raw = bytearray()

    def add(self, piece: Piece, raw: bytes) -> None:
        """Append a piece that is other bytes of the same length in `raw`."""
        self._pieces.append(piece)
        self.raw += raw

    def take(self, size: int) -> list[Piece]:
        """Remove and return the first `size` bytes; a cut piece keeps its rest in the queue."""
        taken = []
        del self.raw[:size]
        while self._pieces and (size or not self._pieces[0].data):
            token, data, visible = self._pieces.popleft()
            taken.append(Piece(token, data[:size], visible))
            if len(data) > size:
                self._pieces.appendleft(Piece(token, data[size:], visible))
            size = max(0, size - len(data))
        return taken


class TextStream:
    """Turns tokens' bytes into text: whole characters, up to the first stop string. One per turn; not thread-safe.

    The stop string that is complete first matches, of several the longest. Possible beginnings are held back.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._stops = [(stop, stop.encode()) for stop in stops]
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._seen = bytearray()
        self._sent = 0
        self._ends: list[int] = []
        self.matched: str | None = None

    def feed(self, piece: bytes) -> str:
        """Take one token's visible bytes and return decided text."""
        search_from = max(0, len(self._seen) - max((len(s) for _, s in self._stops), default=1) + 1)
        self._seen += piece
        self._ends.append(len(self._seen))
        found = [(at + len(s), at, stop) for stop, s in self._stops if (at := self._seen.find(s, search_from)) >= 0]
        if found:
            _, start, self.matched = min(found)
            return self._send(start, final=True)
        held_back = max((beginning_at_end(self._seen, stop) for _, stop in self._stops), default=0)
        return self._send(len(self._seen) - held_back, final=False)

    def finish(self) -> str:
        """Return the rest, if no stop string ended generation."""
        return "" if self.matched else self._send(len(self._seen), final=True)

    def tokens_before_stop(self) -> int:
        """Return the number of tokens wholly before the stop string; all if none matched."""
        return len(self._ends) if self.matched is None else sum(end <= self._sent for end in self._ends)

    def _send(self, end: int, *, final: bool) -> str:
        text = self._decoder.decode(self._seen[self._sent : end], final)
        self._sent = max(end, self._sent)
        return text


class TextBlocks:
    """Trims white space at the ends of text blocks, and puts an empty line between them."""

    def __init__(self) -> None:
        self.any = False
        """There was text."""
        self.space = ""
        """White space that came last: the end of the block, or inside it if more text follows."""
        self._starts = self._separate = False

    def start(self, *, separate: bool) -> None:
        """Begin a block; `separate` puts an empty line between it and earlier text."""
        self._starts, self.space = True, ""
        self._separate = self._separate or (separate and self.any)

    def add(self, text: str) -> str:
        """Take text of the block and return what of it is certain to be inside."""
        text = self.space + text
        text = text.lstrip(LAYOUT) if self._starts else text
        kept = text.rstrip(LAYOUT)
        self.space = text[len(kept) :]
        if not kept:
            return ""
        before = _BETWEEN if self._separate else ""
        self.any, self._starts, self._separate = True, False, False
        return before + kept


def beginning_at_end(data: bytearray, marker: bytes) -> int:
    """Return the length of the longest proper prefix of `marker` that `data` ends with."""
    sizes = range(min(len(marker) - 1, len(data)), 0, -1)
    return next((size for size in sizes if data.endswith(marker[:size])), 0)
