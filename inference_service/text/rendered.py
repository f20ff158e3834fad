"""A prompt as text, before it is tokens."""

from dataclasses import dataclass
from typing import NamedTuple


class Span(NamedTuple):
    """A byte range that is one special token."""

    start: int
    end: int


@dataclass(frozen=True)
class Rendered:
    """A prompt as text. `specials` are its special tokens, in order; all else is ordinary text.

    `literal` says that `text` also spells special tokens that are ordinary text, so that it must not be parsed whole.
    `checkpoints` are byte positions worth resuming at, in order: the end of what all chats with this system prompt have
    in common, and the end of the last message before the cue that makes the model answer. Raw text has none.
    """

    text: bytes
    specials: tuple[Span, ...] = ()
    literal: bool = False
    checkpoints: tuple[int, ...] = ()

    def __add__(self, other: "Rendered") -> "Rendered":
        size = len(self.text)
        return Rendered(
            self.text + other.text,
            self.specials + tuple(Span(s.start + size, s.end + size) for s in other.specials),
            self.literal or other.literal,
            self.checkpoints + tuple(at + size for at in other.checkpoints),
        )

    def behind(self, start: int) -> "Rendered":
        """What follows byte `start`, which must not lie inside a character or special token."""
        return Rendered(
            self.text[start:],
            tuple(Span(s.start - start, s.end - start) for s in self.specials if s.start >= start),
            self.literal,
            tuple(at - start for at in self.checkpoints if at > start),
        )

    def ends_with(self, ending: "Rendered") -> bool:
        """Whether it does, in text and special tokens.

        A special token is there whole or not at all: the beginning of its spelling, or its spelling as ordinary text,
        is not a part of it.
        """
        at = len(self.text) - len(ending.text)
        there = [Span(s.start - at, s.end - at) for s in self.specials if s.end > at]
        return self.text.endswith(ending.text) and there == list(ending.specials)


def inside_character(text: bytes, at: int) -> bool:
    """Whether a cut at byte `at` is inside a UTF-8 character of `text`."""
    return at < len(text) and text[at] & 0xC0 == 0x80
