"""The bytes of each token, which must not depend on neighbours: a ledger's text is its tokens' bytes. Known decoders
fulfil that; other tokenizers are refused. And a lower bound of a text's tokens.
"""

import json
import re
import unicodedata
from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import tokenizers
import tokenizers.models

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SAMPLE = 512
_WINDOW = 1 << 18
_TEXT_BYTES = frozenset((*range(0xC0), *range(0xC2, 0xF5)))
"""UTF-8's."""
_LOSSLESS = frozenset(("ByteLevel", "Digits", "Metaspace"))
_PARTS = ("decoders", "normalizers", "pretokenizers")


def token_pieces(backend: tokenizers.Tokenizer) -> list[bytes]:
    """Return bytes by id; b"" for gaps. Raises ValueError for an unknown decoder.

    Added tokens go through the decoder, such as Gemma's runs of U+2581; not through a byte-level one, which would read
    "naïve" as stand-ins for bytes.
    """
    steps = _steps(backend.decoder)
    kinds = [step["type"] for step in steps]
    to_bytes = _piece_decoder(backend, steps, kinds)
    added = backend.get_added_tokens_decoder()
    vocabulary = backend.get_vocab(with_added_tokens=True)
    pieces = [b""] * (max([*vocabulary.values(), *added], default=-1) + 1)
    if to_bytes is not None:
        for token, token_id in vocabulary.items():
            pieces[token_id] = to_bytes(token)
    if to_bytes is None or not _as_decoded(backend, pieces, [*vocabulary.values()], added.keys()):
        raise ValueError(
            f"the tokenizer's decoder ({', '.join(kinds) or 'none'}) does not say which bytes a token stands for; "
            "byte-level BPE, SentencePiece, WordPiece and WordLevel tokenizers are supported. If tokenizer.json does "
            'not have the decoder that the model was trained with, put that there (for byte-level BPE "decoder": '
            '{"type": "ByteLevel"}); otherwise take another model'
        )
    for token_id, added_token in added.items():
        if added_token.special or "ByteLevel" in kinds:
            pieces[token_id] = added_token.content.encode()
    return pieces


class LeastTokens:
    """A lower bound of tokens, for tokenizers whose tokens spell their text.

    One token leads at most as far as the longest that begins with the same two bytes. Repeated, that passes a text in
    no more tokens than any tokenization has.
    """

    def __init__(self, backend: tokenizers.Tokenizer, pieces: Sequence[bytes], byte_ids: Iterable[int]) -> None:
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
        """Return whether all tokenizations have more than `limit` tokens; False if unknown."""
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


def _steps(component: Any) -> list[Any]:
    """Return the parts of a decoder, normalizer or pre-tokenizer."""

    def flattened(step: Any) -> list[Any]:
        parts = next((step[name] for name in _PARTS if name in step), None)
        return [step] if parts is None else [each for part in parts for each in flattened(part)]

    return flattened(json.loads(component.__getstate__())) if component else []


def _as_decoded(
    backend: tokenizers.Tokenizer, pieces: list[bytes], token_ids: list[int], added: Container[int]
) -> bool:
    """Compare with decoding, but for a space at the beginning."""
    sample = [i for i in token_ids[:: max(1, len(token_ids) // _SAMPLE)] if i not in added]
    sample = [i for i in sample if pieces[i].decode(errors="ignore").encode() == pieces[i]]
    sample = [*[i for i in sample if pieces[i].startswith(b" ")][:1], *sample]  # no text begins inside a word
    expected = b"".join(pieces[i] for i in sample).decode()
    decoded = backend.decode(sample, skip_special_tokens=False)
    return decoded in (expected, expected.removeprefix(" "))


def _piece_decoder(backend: tokenizers.Tokenizer, steps: list[Any], kinds: list[str]) -> Callable[[str], bytes] | None:
    if "ByteLevel" in kinds:
        return _from_byte_level
    if kinds and (replacements := _sentence_piece(steps)) is not None:
        return partial(_from_sentence_piece, replacements, "ByteFallback" in kinds)
    if kinds == ["WordPiece"]:
        return lambda token: backend.decoder.decode(["a", token])[1:].encode()  # as after another word
    if not kinds and isinstance(backend.model, tokenizers.models.WordLevel):
        return lambda token: f" {token}".encode()  # without a decoder, spaces join tokens
    return None


def _sentence_piece(steps: list[Any]) -> list[tuple[str, str]] | None:
    """None if the decoder does more."""
    replacements, fused = [], False
    for step in steps:
        match step:
            case {"type": "Metaspace", "replacement": str(mark)}:
                replacements.append((mark, " "))
            case {"type": "Replace", "pattern": {"String": str(text)}, "content": str(content)} if not fused:
                replacements.append((text, content))
            case {"type": "ByteFallback"}:
                pass
            case {"type": "Fuse"}:
                fused = True
            case {"type": "Strip", "stop": 0} if fused:
                pass  # for the text's beginning
            case _:
                return None
    return replacements


def _byte_level_alphabet() -> dict[str, int]:
    """Return GPT-2's stand-ins for bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + n): b for n, b in enumerate(others)}


_BYTE_LEVEL = _byte_level_alphabet()


def _from_byte_level(token: str) -> bytes:
    try:
        return bytes(_BYTE_LEVEL[char] for char in token)
    except KeyError:
        return token.encode()  # an added token


def _from_sentence_piece(replacements: list[tuple[str, str]], byte_fallback: bool, token: str) -> bytes:
    for text, content in replacements:
        token = token.replace(text, content)
    if byte_fallback and (match := _BYTE_PIECE.fullmatch(token)):
        return bytes([int(match[1], 16)])
    return token.encode()


def _spells(backend: tokenizers.Tokenizer, normalizer: list[Any]) -> bool:
    """Return whether tokens have all of a text's bytes: nothing is dropped, shortened or stripped."""
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
