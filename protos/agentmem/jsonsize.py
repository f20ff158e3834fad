"""How much a JSON text holds, counted without reading it, and how much it may hold.

What is read of a text of small parts takes thirty times its bytes, and nothing else of the process runs meanwhile. So
texts of others are counted first. That takes 3 to 13 ms a megabyte, in pieces between which other threads run.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from agentmem.errors import InvalidArgument

_PIECE: Final = 256 * 1024


class Size(NamedTuple):
    """Counts of a JSON text. The names of members are texts, too."""

    values: int
    """Elements of arrays and members of objects, and at most the arrays and objects once more."""
    texts: int
    containers: int
    """Arrays and objects."""


TEXT: Final = Size(values=2**16, texts=2**17, containers=2**15)
"""The limit for JSON that the contract carries as text. It is parsed in one go, which takes up to 50 ms."""

BODY: Final = Size(values=2**20, texts=2**19, containers=2**15)
"""The limit for a request's body: a million token ids, or a chat of 8,000 messages of parts. Objects are few because a
garbage collection, which stops all other threads, takes 50 ms with so many messages.
"""

MAX_TOGETHER: Final = 500_000
"""Values in all JSON texts of a chat: each takes up to seventy bytes, again where it is copied."""

MAX_MEMBERS: Final = 4096
"""Members of one object in a body; each can be wrong by itself."""

_WORDS: Final = (*Size._fields[:2], "arrays and objects")


def check(field: str, text: bytes | bytearray, most: Size) -> None:
    """Raise InvalidArgument that names `field` where a text holds more than `most`.

    It takes the text for JSON. Of another one the count is right as far as a parser comes.
    """
    values = quotes = containers = within = begin = 0
    while begin < len(text):
        piece = text[begin : begin + _PIECE]
        begin += len(piece)
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:  # the last of them escapes what follows
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
    """Raise InvalidArgument for texts of more than MAX_TOGETHER values. Signs that may stand before one are counted."""
    if sum(text.count(sign) for text in texts for sign in ",[{") > MAX_TOGETHER:
        raise InvalidArgument(field, f"its JSON must have at most {MAX_TOGETHER} values, commas in texts included")


def count(value: object, most: int) -> int:
    """Return the elements and members in a value of JSON, on all its levels; or some number beyond `most`."""
    found, level = 0, [value]
    while level and found <= most:
        one = level.pop()
        if isinstance(one, dict | list):
            found += len(one)
            level += [
                each for each in (one.values() if isinstance(one, dict) else one) if isinstance(each, dict | list)
            ]
    return found
