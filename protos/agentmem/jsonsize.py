"""Counts of a JSON text's values without parsing it: 3 to 13 ms per megabyte.

Parsing takes up to thirty times a text's bytes and blocks all threads.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from agentmem.errors import InvalidArgument

_PIECE: Final = 256 * 1024


class Size(NamedTuple):
    """Names of members are texts, too."""

    values: int
    """Elements and members, and up to once more the arrays and objects."""
    texts: int
    containers: int


TEXT: Final = Size(values=2**16, texts=2**17, containers=2**15)
"""Limit for JSON that the contract carries as text: up to 50 ms to parse."""

BODY: Final = Size(values=2**20, texts=2**19, containers=2**15)
"""Limit for a body: a million token ids, or 8,000 messages with parts; a garbage collection then takes 50 ms."""

MAX_TOGETHER: Final = 500_000
"""Values in all JSON texts of a chat, of up to seventy bytes in each copy."""

MAX_MEMBERS: Final = 4096

_WORDS: Final = (*Size._fields[:2], "arrays and objects")


def check(field: str, text: bytes | bytearray, most: Size) -> None:
    """Raise InvalidArgument if a text holds more than `most`; invalid JSON counts as far as it parses."""
    values = quotes = containers = within = begin = 0
    while begin < len(text):
        piece = text[begin : begin + _PIECE]
        begin += len(piece)
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:  # the last escapes what follows
            piece += text[begin : begin + 1]
            begin += 1
        strings = piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        outside = b"".join(strings[within::2])
        within = (within + len(strings) - 1) % 2
        quotes += len(strings) - 1
        opened = outside.count(b"[") + outside.count(b"{")
        containers += opened
        values += opened + outside.count(b",")
        for held, limit, word in zip((values, quotes // 2, containers), most, _WORDS, strict=True):
            if held > limit:
                raise InvalidArgument(field, f"must not have more than {limit} {word}")


def check_together(field: str, texts: Iterable[str]) -> None:
    """Raise InvalidArgument for more than MAX_TOGETHER values."""
    if sum(text.count(sign) for text in texts for sign in ",[{") > MAX_TOGETHER:
        raise InvalidArgument(field, f"its JSON must have at most {MAX_TOGETHER} values, commas in texts included")


def count(value: object, most: int) -> int:
    """Count a value's elements and members on all levels, stopping beyond `most`."""
    found, level = 0, [value]
    while level and found <= most:
        one = level.pop()
        if isinstance(one, dict | list):
            found += len(one)
            level += [
                each for each in (one.values() if isinstance(one, dict) else one) if isinstance(each, dict | list)
            ]
    return found
