"""What each token of a vocabulary stands for, in bytes, by the tokenizer's own decoder.

A token's bytes must not depend on its neighbours: a ledger's text is the bytes of its tokens, one after the other. All
decoders that are known here have that property but for a text's first token, of which some strip a space; a tokenizer
with any other is refused when its model is loaded.
"""

import json
import re
from collections.abc import Callable, Container
from functools import partial
from typing import Any

import tokenizers
import tokenizers.models

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SAMPLE = 512
"""Tokens that are decoded one behind the other to see whether their pieces are what the decoder makes of them."""


def token_pieces(backend: tokenizers.Tokenizer) -> list[bytes]:
    """The bytes of each token, by id; b"" for ids without a token.

    Special tokens stand for their spelling. Other added tokens go through the decoder as all tokens do: Gemma has runs
    of spaces among them, spelled with U+2581. Only a byte-level decoder takes them as they are: it would read "naïve"
    as stand-ins for bytes, and give a text that is no UTF-8. Raises ValueError where the decoder cannot say
    what a token stands for.
    """
    steps = _steps(json.loads(backend.decoder.__getstate__()) if backend.decoder else None)
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


def _as_decoded(
    backend: tokenizers.Tokenizer, pieces: list[bytes], token_ids: list[int], added: Container[int]
) -> bool:
    """Whether decoding tokens gives what their pieces give, but for a space at the beginning."""
    sample = [i for i in token_ids[:: max(1, len(token_ids) // _SAMPLE)] if i not in added and _is_text(pieces[i])]
    sample = [*[i for i in sample if pieces[i].startswith(b" ")][:1], *sample]  # A text does not begin inside a word.
    expected = b"".join(pieces[i] for i in sample).decode()
    decoded = backend.decode(sample, skip_special_tokens=False)
    return decoded in (expected, expected.removeprefix(" "))


def _is_text(piece: bytes) -> bool:
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return True


def _piece_decoder(backend: tokenizers.Tokenizer, steps: list[Any], kinds: list[str]) -> Callable[[str], bytes] | None:
    if "ByteLevel" in kinds:
        return _from_byte_level
    if kinds and (replacements := _sentence_piece(steps)) is not None:
        return partial(_from_sentence_piece, replacements, "ByteFallback" in kinds)
    if kinds == ["WordPiece"]:
        return partial(_after_a_word, backend.decoder)
    if not kinds and isinstance(backend.model, tokenizers.models.WordLevel):
        return _word  # Without a decoder, tokens are joined by spaces.
    return None


def _steps(decoder: Any) -> list[Any]:
    """The decoder's parts, in order."""
    if not decoder:
        return []
    if decoder["type"] == "Sequence":
        return [step for part in decoder["decoders"] for step in _steps(part)]
    return [decoder]


def _sentence_piece(steps: list[Any]) -> list[tuple[str, str]] | None:
    """What is replaced in each token; None where that does not say it all."""
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
                pass  # Of the text's beginning.
            case _:
                return None
    return replacements


def _byte_level_alphabet() -> dict[str, int]:
    """The printable stand-ins that byte-level BPE (GPT-2) uses for the 256 bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + n): b for n, b in enumerate(others)}


_BYTE_LEVEL = _byte_level_alphabet()


def _from_byte_level(token: str) -> bytes:
    try:
        return bytes(_BYTE_LEVEL[char] for char in token)
    except KeyError:
        return token.encode()  # An added token, which is no stand-in.


def _from_sentence_piece(replacements: list[tuple[str, str]], byte_fallback: bool, token: str) -> bytes:
    for text, content in replacements:
        token = token.replace(text, content)
    if byte_fallback and (match := _BYTE_PIECE.fullmatch(token)):
        return bytes([int(match[1], 16)])
    return token.encode()


def _after_a_word(decoder: Any, token: str) -> bytes:
    decoded: str = decoder.decode(["a", token])
    return decoded[1:].encode()


def _word(token: str) -> bytes:
    return f" {token}".encode()
