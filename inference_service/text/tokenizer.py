"""Tokens as bytes: what a token stands for exactly, and encoding that user text cannot break out of.

Works on a Hugging Face fast tokenizer. All methods are thread-safe (the underlying encoders are not mutated), and
encoding lets go of the GIL (`encode_batch`: 200K characters stall other threads for 4 ms, `encode` for 71).
"""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

import tokenizers

from agentmem.errors import FailedPrecondition

_LEAD = "\x01"
"""No token but its own byte's has it, so that no token goes from it into the text behind it."""


class Tokenizer:
    """`backend` is a tokenizers.Tokenizer. Raises FailedPrecondition where tokens cannot be told as bytes."""

    def __init__(self, backend: tokenizers.Tokenizer, eos_ids: Iterable[int]) -> None:
        serialized = backend.to_str()
        self._parsing = tokenizers.Tokenizer.from_str(serialized)
        self._literal = tokenizers.Tokenizer.from_str(serialized)
        for encoder in (self._parsing, self._literal):
            encoder.no_padding()
            encoder.no_truncation()
        self._literal.encode_special_tokens = True
        self.hash = hashlib.sha256(serialized.encode()).hexdigest()
        self.eos_ids = frozenset(eos_ids)
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self._specials = {added[i].content: i for i in self.special_ids}
        self._special_pattern = _alternatives(self._specials)
        self._pieces = _token_pieces(backend, {i: token.content for i, token in added.items()})
        self.vocab_size = len(self._pieces)
        self.byte_ids = {piece[0]: i for i, piece in enumerate(self._pieces) if len(piece) == 1 and i not in added}
        """Tokens that stand for a single byte, by that byte."""
        self.prefix_ids = _prefix_ids(backend, self.special_ids)
        self._lead: list[int] = []
        if self.decode(self.encode("a", parse_special=False)) == b" a":
            self._lead = self.encode(_LEAD, parse_special=False)

    def token_bytes(self, token_id: int) -> bytes:
        """What a token stands for, a special token spelled out; b"" for ids that the tokenizer does not know."""
        return self._pieces[token_id] if token_id < len(self._pieces) else b""

    def pieces(self, token_ids: Iterable[int]) -> list[bytes]:
        """`token_bytes` of each."""
        token_ids = tuple(token_ids)
        try:
            return [*map(self._pieces.__getitem__, token_ids)]  # A long context's tokens, at each turn.
        except IndexError:
            return [self.token_bytes(i) for i in token_ids]

    def decode(self, token_ids: Iterable[int]) -> bytes:
        """The bytes that the tokens stand for, special tokens spelled out."""
        return b"".join(self.pieces(token_ids))

    def special_spans(self, text: str) -> list[tuple[int, int]]:
        """Character ranges of `text` that parse as special tokens."""
        if self._special_pattern is None:
            return []
        return [match.span() for match in self._special_pattern.finditer(text)]

    def is_special(self, text: bytes) -> bool:
        """Whether `text` spells exactly one special token."""
        return text.decode(errors="replace") in self._specials

    def special_id(self, text: str) -> int:
        """The id of the special token spelled `text`."""
        return self._specials[text]

    def encode(self, text: str, *, parse_special: bool, continues: bool = False) -> list[int]:
        """Tokens of `text`, without any BOS. Special tokens in it are parsed, or taken as ordinary text.

        `continues` says that other text stands before it: SentencePiece tokenizers, which put a space before whatever
        they get, then put none.
        """
        if not text:
            return []
        encoder = self._parsing if parse_special else self._literal
        if continues and self._lead:
            token_ids = list(encoder.encode_batch([_LEAD + text], add_special_tokens=False)[0].ids)
            if token_ids[: len(self._lead)] == self._lead:
                return token_ids[len(self._lead) :]
        return list(encoder.encode_batch([text], add_special_tokens=False)[0].ids)

    def pre_token_boundary(self, before: str, after: str) -> int:
        """The last place in `before`, in characters, at which whole tokenization of `before + after` must also split.

        A token of ordinary text never crosses a pre-token's end, so cutting there and going on gives the same tokens
        as tokenizing whole; provided that what is before the cut splits the same way without what is behind it (runs
        of spaces may not: Llama 3 and GPT-4 split the last one off where a word follows). 0 where the tokenizer has no
        pre-tokenizer or splits nowhere.
        """
        text = before + after
        spans = self._pre_tokens(text)
        for start in reversed([start for start, _ in spans if start <= len(before)]):
            if self._pre_tokens(text[:start]) == [span for span in spans if span[1] <= start]:
                return start
        return 0

    def _pre_tokens(self, text: str) -> list[tuple[int, int]]:
        pre_tokenizer = self._parsing.pre_tokenizer
        return [] if pre_tokenizer is None else [span for _, span in pre_tokenizer.pre_tokenize_str(text)]


def _alternatives(texts: Iterable[str]) -> "re.Pattern[str] | None":
    longest_first = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None


def _prefix_ids(backend: tokenizers.Tokenizer, special_ids: frozenset[int]) -> tuple[int, ...]:
    prefix = []
    for token_id in backend.encode("a", add_special_tokens=True).ids:
        if token_id not in special_ids:
            break
        prefix.append(token_id)
    return tuple(prefix)


def _token_pieces(backend: tokenizers.Tokenizer, added: dict[int, str]) -> list[bytes]:
    to_bytes = _piece_decoder(json.loads(backend.to_str())["decoder"])
    size = max([backend.get_vocab_size(with_added_tokens=True), *(i + 1 for i in added)])
    pieces = []
    for token_id in range(size):
        token = backend.id_to_token(token_id)
        if token_id in added:
            pieces.append(added[token_id].encode())
        else:
            pieces.append(b"" if token is None else to_bytes(token))
    return pieces


def _piece_decoder(decoder: Any) -> Any:
    kinds = _decoder_kinds(decoder)
    if "ByteLevel" in kinds:
        return _from_byte_level
    if "ByteFallback" in kinds or "Metaspace" in kinds:
        return _from_sentence_piece
    raise FailedPrecondition(
        f"the tokenizer's decoder ({', '.join(kinds) or 'none'}) does not say which bytes a token stands for; "
        "byte-level BPE and SentencePiece tokenizers are supported"
    )


def _decoder_kinds(decoder: Any) -> Sequence[str]:
    if not decoder:
        return ()
    if decoder["type"] == "Sequence":
        return [kind for part in decoder["decoders"] for kind in _decoder_kinds(part)]
    return [decoder["type"]]


def _byte_level_alphabet() -> dict[str, int]:
    """The printable stand-ins that byte-level BPE (GPT-2) uses for the 256 bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + n): b for n, b in enumerate(others)}


_BYTE_LEVEL = _byte_level_alphabet()
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _from_byte_level(token: str) -> bytes:
    try:
        return bytes(_BYTE_LEVEL[char] for char in token)
    except KeyError:
        return token.encode()


def _from_sentence_piece(token: str) -> bytes:
    if match := _BYTE_PIECE.fullmatch(token):
        return bytes([int(match[1], 16)])
    return token.replace("\u2581", " ").encode()
