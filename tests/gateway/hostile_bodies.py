"""Bodies of JSON that cost much where a server is careless: as long as may be, of many small or few large parts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

_MARK: Final = "@the hole@"

REPEATED: Final[Mapping[str, bytes]] = {
    "ones": b"1",
    "token ids": b"128000",
    "floats": b"0.123456789",
    "long numbers": b"9" * 4000,
    "empty texts": b'""',
    "texts": b'"abc"',
    "empty lists": b"[]",
    "empty objects": b"{}",
    "objects": b'{"a":1}',
    "unknown members": b'{"a":1,"b":2,"c":3,"d":4,"e":5,"f":6,"g":7,"h":8}',
    "many levels": b"[" * 50 + b"]" * 50,
    "nulls": b"null",
    "messages": b'{"role":"user","content":"x"}',
    "bad messages": b'{"role":"user","content":1}',
    "parts": b'{"type":"text","text":"x"}',
    "lists of parts": b'{"role":"user","content":[{"type":"text","text":"x"}]}',
    "blocks": b'{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":{}}]}',
    "calls": b'{"type":"function_call","call_id":"a","name":"f","arguments":"{}"}',
    "tools": b'{"type":"function","function":{"name":"f"}}',
    "hints": b'{"key":{"agent_id":"a","model_id":"demo"},"steps":1}',
}
"""Elements of a list that is as long as it may be."""

WHOLE: Final[Mapping[str, tuple[bytes, bytes, bytes]]] = {
    "members": (b"{", b"", b"}"),
    "escapes": (b'"', b"\\n", b'"'),
    "surrogates": (b'"', b"\\ud83d\\ude00", b'"'),
    "wide text": (b'"', b"x", '\U0001f600"'.encode()),
    "commas in a text": (b'"', b",[{", b'"'),
    "backslashes": (b'"', b"\\\\", b'"'),
    "deep": (b"[", b"[", b"]"),
    "spaces": (b"", b" ", b"1"),
    "digits": (b"0.", b"1", b""),
    "yaml": (b'"workflow: a\\nagents: [', b"1,", b']"'),
}
"""Values of one piece: how they begin, what is repeated, and how they end."""

KINDS: Final = (*REPEATED, *WHOLE)


def filler(kind: str, size: int) -> bytes:
    if kind in REPEATED:
        element = REPEATED[kind]
        return b"[" + b",".join([element] * (size // (len(element) + 1))) + b"]"
    begin, piece, end = WHOLE[kind]
    if kind == "members":
        return begin + b",".join(b'"%d":0' % number for number in range(size // 14)) + end
    return begin + piece * ((size - len(begin) - len(end)) // len(piece)) + end


def with_filler(body: Mapping[str, Any], field: str, kind: str, size: int) -> bytes:
    """Return `body` with a filler of its own as `field`, in all of `size` bytes at most."""
    around = json.dumps({**body, field: _MARK}).encode()
    return around.replace(f'"{_MARK}"'.encode(), filler(kind, size - len(around)))
