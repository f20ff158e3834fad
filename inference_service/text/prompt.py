from dataclasses import dataclass
from typing import NamedTuple

from agentmem.v1 import cache_store_pb2 as pb
from inference_service.domain import AppendInput, MessagesInput, TurnInput


class Span(NamedTuple):
    """Bytes."""

    start: int
    end: int


@dataclass(frozen=True)
class Rendered:
    """A prompt with its special tokens. `literal`: it also spells some as text, so it must not be parsed whole. Resume
    at `checkpoints`, in bytes: after the shared system prompt, and before the generation prompt.
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
        """Return the rest from byte `start`."""
        return Rendered(
            self.text[start:],
            tuple(Span(s.start - start, s.end - start) for s in self.specials if s.start >= start),
            self.literal,
            tuple(at - start for at in self.checkpoints if at > start),
        )

    def ends_with(self, ending: "Rendered") -> bool:
        """Compare text and whole special tokens."""
        at = len(self.text) - len(ending.text)
        there = [Span(s.start - at, s.end - at) for s in self.specials if s.end > at]
        return self.text.endswith(ending.text) and there == list(ending.specials)


def inside_character(text: bytes, at: int) -> bool:
    return at < len(text) and text[at] & 0xC0 == 0x80


def message_places(given: TurnInput, before: bytes, added: bytes, *, appended: bool) -> list[pb.MessagePlace]:
    """Return places of contents in `added`, after `before`: at its end if `appended`, or in order from the beginning.
    Contents that the template changes have none.
    """
    chat = given.content if isinstance(given, AppendInput) else given
    if not isinstance(chat, MessagesInput):
        return []
    text, start = before + added, len(before)
    low, high = start if appended else 0, len(text)
    places = []
    for message in reversed(chat.messages) if appended else chat.messages:
        find = text.rfind if appended else text.find
        content = str(message.get("content") or "").encode(errors="surrogatepass")
        begin = find(content, low, high)
        if begin < 0:
            content = content.strip()
            begin = find(content, low, high)
        if begin < 0 or not content:
            continue
        end = begin + len(content)
        low, high = (low, begin) if appended else (end, high)
        if end > start:
            back = {"start_from_end": len(text) - max(begin, start), "end_from_end": len(text) - end}
            places.append(pb.MessagePlace(role=str(message.get("role")), **back))
    return places[::-1] if appended else places
