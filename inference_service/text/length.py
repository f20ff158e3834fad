"""How many tokens a text has at least, told without tokenizing it."""

import json
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tokenizers

_WINDOW = 1 << 18
"""Bytes that are looked at in one go."""
_TEXT_BYTES = frozenset((*range(0xC0), *range(0xC2, 0xF5)))
"""Those that UTF-8 has."""
_LOSSLESS = frozenset(("ByteLevel", "Digits", "Metaspace"))


class LeastTokens:
    """A lower bound on how many tokens a text has, for tokenizers whose tokens spell their text.

    From any place one token leads at most as far as the longest token of the vocabulary that begins with the two bytes
    there. Leading that far again and again passes the text in no more tokens than any tokenization of it has.
    """

    def __init__(self, backend: tokenizers.Tokenizer, pieces: Sequence[bytes], byte_ids: Iterable[int]) -> None:
        """`pieces` are what tokens stand for, by id; `byte_ids` the bytes that have a token of their own."""
        steps = _steps(backend.normalizer)
        self._composes = any(step["type"] == "NFC" for step in steps)
        self._known = set(byte_ids) >= _TEXT_BYTES and _spells(backend, steps)
        self._longest = np.ones(1 << 16, np.int32)
        if self._known:
            for piece in pieces:
                if len(piece) > 1:
                    pair = piece[0] << 8 | piece[1]
                    self._longest[pair] = max(self._longest[pair], len(piece))

    def exceed(self, text: bytes, limit: int) -> bool:
        """Whether all tokenizations of the text have more than `limit` tokens; False where that cannot be said."""
        if not self._known or len(text) <= limit:
            return False
        if self._composes:
            text = unicodedata.normalize("NFC", text.decode()).encode()
        data = np.frombuffer(text, np.uint8)
        at, reach, tokens = 0, 0, 0
        for start in range(0, len(data), _WINDOW):
            part = data[start : start + _WINDOW + 1].astype(np.int32)
            leads = np.arange(start, start + len(part) - 1) + self._longest[part[:-1] << 8 | part[1:]]
            if not len(leads):
                break
            farthest = np.maximum.accumulate(np.maximum(leads, reach)).tolist()
            while at - start < len(farthest):
                at = farthest[at - start]
                tokens += 1
                if tokens > limit:
                    return True
            reach = farthest[-1]
        return tokens + (at < len(data)) > limit


def _spells(backend: tokenizers.Tokenizer, normalizer: list[Any]) -> bool:
    """Whether tokens have all of a text's bytes: nothing is dropped, shortened or stripped."""
    if any(token.lstrip or token.rstrip for token in backend.get_added_tokens_decoder().values()):
        return False
    for step in normalizer:
        match step:
            case {"type": "NFC"} | {"type": "Prepend"}:
                pass
            case {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}:
                pass
            case _:
                return False
    return all(
        step["type"] in _LOSSLESS or (step["type"] == "Split" and step["behavior"] != "Removed")
        for step in _steps(backend.pre_tokenizer)
    )


def _steps(component: Any) -> list[Any]:
    """The parts of a normalizer or pre-tokenizer, in order."""
    return _flattened(json.loads(component.__getstate__())) if component else []


def _flattened(step: Any) -> list[Any]:
    parts = step.get("normalizers", step.get("pretokenizers"))
    return [step] if parts is None else [each for part in parts for each in _flattened(part)]
