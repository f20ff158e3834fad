"""Arguments of a call as they are written."""

import codecs
import json
import re
from typing import Final

_HEAD: Final = re.compile(rb'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.){1,512}")\s*,\s*"arguments"\s*:\s*(?=\{)')
_LONGEST_HEAD: Final = 1024
"""Longer calls without arguments have no parts."""


class CallParts:
    """Reads {"name": NAME, "arguments": {…}}. Not thread-safe."""

    def __init__(self) -> None:
        self.name = ""
        self.text = ""
        """As written."""
        self.whole = False
        self._at = -1
        self._depth = 0
        self._quoted = self._escaped = self._over = False
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def feed(self, raw: bytearray, start: int) -> str:
        """Return new arguments in `raw`, the call so far."""
        if self._over:
            return ""
        if self._at < 0 and not self._find_arguments(raw, start):
            return ""
        begin, end = self._at, self._read(raw)
        try:
            new = self._decoder.decode(bytes(raw[begin:end]))
        except UnicodeDecodeError:
            self._over = True
            return ""
        self.text += new
        self.whole = self._over
        return new

    def _find_arguments(self, raw: bytearray, start: int) -> bool:
        if (found := _HEAD.match(raw, start)) is None:
            self._over = len(raw) - start > _LONGEST_HEAD
            return False
        try:
            self.name = json.loads(found[1])
        except ValueError:
            self._over = True
            return False
        self._at = found.end()
        return True

    def _read(self, raw: bytearray) -> int:
        for place in range(self._at, len(raw)):
            byte = raw[place]
            if self._escaped:
                self._escaped = False
            elif self._quoted:
                self._escaped, self._quoted = byte == 0x5C, byte != 0x22
            elif byte == 0x22:
                self._quoted = True
            elif byte in b"{[":
                self._depth += 1
            elif byte in b"}]":
                self._depth -= 1
                if not self._depth:
                    self._over, self._at = True, place + 1
                    return self._at
        self._at = len(raw)
        return self._at
