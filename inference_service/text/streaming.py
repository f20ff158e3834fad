"""Generated tokens as text: whole characters only, stop strings held back and cut off."""

import codecs
from collections.abc import Sequence


class TextStream:
    """Turns the bytes of tokens into text as they come.

    Stop strings match on text, wherever token boundaries lie: the one that is complete first counts, and of those
    complete at the same place the longest. Text that might be the beginning of one is held back until it is decided.
    One instance per turn; not thread-safe.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._stops = [(stop, stop.encode()) for stop in stops]
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._seen = b""
        self._sent = 0
        self._ends: list[int] = []
        self.matched: str | None = None
        """The stop string that matched."""

    def feed(self, piece: bytes) -> str:
        """Take one token's visible bytes (none for a special token); the text that is certain now."""
        search_from = max(0, len(self._seen) - max((len(s) for _, s in self._stops), default=1) + 1)
        self._seen += piece
        self._ends.append(len(self._seen))
        found = [(at + len(s), at, stop) for stop, s in self._stops if (at := self._seen.find(s, search_from)) >= 0]
        if found:
            _, start, self.matched = min(found)
            return self._send(start, final=True)
        return self._send(len(self._seen) - self._held_back(), final=False)

    def finish(self) -> str:
        """The rest of the text, when generation ended otherwise than by a stop string."""
        return "" if self.matched else self._send(len(self._seen), final=True)

    def tokens_before_stop(self) -> int:
        """How many of the tokens lie wholly before the stop string that matched; all of them if none did."""
        if self.matched is None:
            return len(self._ends)
        start = self._sent
        return sum(1 for end in self._ends if end <= start)

    def _send(self, end: int, *, final: bool) -> str:
        text = self._decoder.decode(self._seen[self._sent : max(end, self._sent)], final)
        self._sent = max(end, self._sent)
        return text

    def _held_back(self) -> int:
        longest = 0
        for _, stop in self._stops:
            for size in range(min(len(stop) - 1, len(self._seen)), longest, -1):
                if self._seen.endswith(stop[:size]):
                    longest = size
                    break
        return longest
