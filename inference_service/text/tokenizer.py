"""Encoding that user text cannot break out of, and exact decoding.

Encoding releases the GIL (`encode_batch`: 200K characters stall other threads for 4 ms, `encode` for 71).
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import takewhile
from typing import Any

import numpy as np
import tokenizers
import tokenizers.models

from inference_service.text.vocabulary import LeastTokens, token_pieces

_LEAD = "\x01"
"""Only its own byte's token has it."""
_BEFORE_SPACE = re.compile(r"([^ ])(?= )")
_PART = 1 << 16
"""Tokenizing millions of characters at once would keep gigabytes."""
_WINDOWS = (2048, 1362)
"""If both agree, a boundary does not depend on the window: their difference is no multiple of three, by which digits
are grouped.
"""
_LOOKAHEAD = 256


class Tokenizer:
    """Thread-safe. Raises ValueError if tokens depend on their neighbours."""

    def __init__(self, backend: tokenizers.Tokenizer, eos_ids: Iterable[int]) -> None:
        self.hash = hashlib.sha256(backend.to_str().encode()).hexdigest()
        self.eos_ids = frozenset(eos_ids)
        added = backend.get_added_tokens_decoder()
        self._parsing = _encoder(backend, added)
        self._literal = _encoder(backend, added)
        self._literal.encode_special_tokens = True
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self._specials = {added[i].content: i for i in self.special_ids}
        self._special_pattern = _alternatives(self._specials)
        self._pieces = token_pieces(backend)
        self.vocab_size = len(self._pieces)
        self.byte_ids = {piece[0]: i for i, piece in enumerate(self._pieces) if len(piece) == 1 and i not in added}
        self._cuts = _Cuts(self._parsing, added, self._pieces)
        self._least_tokens = LeastTokens(backend, self._pieces, self.byte_ids)
        before = backend.encode("a", add_special_tokens=True).ids
        self.prefix_ids = tuple(takewhile(self.special_ids.__contains__, before))
        self._lead: list[int] = []
        lead = self.encode(_LEAD, parse_special=False)
        if self.decode(lead) == f" {_LEAD}".encode():
            self._lead = lead
        special = next(iter(self._specials), "")
        behind = self.decode(self.encode(f"{special}a", parse_special=True))
        self.space_after_special = bool(self._lead) and behind == f"{special} a".encode()
        """Text after a special token gets SentencePiece's space."""

    def token_bytes(self, token_id: int) -> bytes:
        """Special tokens are spelled out; unknown ids are b""."""
        return self._pieces[token_id] if token_id < len(self._pieces) else b""

    def pieces(self, token_ids: Iterable[int]) -> list[bytes]:
        token_ids = token_ids.tolist() if isinstance(token_ids, np.ndarray) else tuple(token_ids)
        try:
            return [*map(self._pieces.__getitem__, token_ids)]  # fast for long contexts
        except IndexError:
            return [self.token_bytes(i) for i in token_ids]

    def decode(self, token_ids: Iterable[int]) -> bytes:
        return b"".join(self.pieces(token_ids))

    def special_spans(self, text: str) -> Iterator[tuple[int, int]]:
        return (match.span() for match in self._special_pattern.finditer(text))

    def break_specials(self, text: str, mark: str) -> str:
        """Put a mark after the first character of longer special tokens."""
        for special in {found[0] for found in self._special_pattern.finditer(text)}:
            if len(special) > 1:
                text = text.replace(special, f"{special[0]}{mark}{special[1:]}")
        return text

    def has_special(self, text: str) -> bool:
        return self._special_pattern.search(text) is not None

    def is_special(self, text: bytes) -> bool:
        return text.decode(errors="replace") in self._specials

    def special_id(self, text: str) -> int:
        return self._specials[text]

    def encode(
        self, text: str, *, parse_special: bool, continues: bool = False, enough: int | None = None
    ) -> list[int]:
        """Return tokens without BOS; special tokens are parsed or ordinary text.

        `continues`: SentencePiece adds no space. Long texts are tokenized in parts, until more than `enough`.
        """
        token_ids: list[int] = []
        for part in self._cuts.parts(text, parse_special=parse_special):
            token_ids += self._encode(part, parse_special, continues or bool(token_ids))
            if enough is not None and len(token_ids) > enough:
                break
        return token_ids

    def _encode(self, text: str, parse_special: bool, continues: bool) -> list[int]:
        if not text:
            return []
        encoder = self._parsing if parse_special else self._literal
        if continues and self._lead:
            token_ids = list(encoder.encode_batch([_LEAD + text], add_special_tokens=False)[0].ids)
            if token_ids[: len(self._lead)] == self._lead:
                return token_ids[len(self._lead) :]
        return list(encoder.encode_batch([text], add_special_tokens=False)[0].ids)

    def pre_token_boundary(self, before: str, after: str) -> int:
        """Return the last place in `before` where tokenization must split."""
        return self._cuts.last(before, after)

    def certainly_exceeds(self, text: bytes, tokens: int) -> bool:
        """Return whether `text` has more tokens, without tokenizing it; False if unknown."""
        return self._least_tokens.exceed(text, tokens)


class _Cuts:
    """Cuts that change no token. Thread-safe."""

    def __init__(
        self, encoder: tokenizers.Tokenizer, added: Mapping[int, tokenizers.AddedToken], pieces: Iterable[bytes]
    ) -> None:
        self._encoder = encoder
        self._added = _alternatives(token.content for token in added.values() if not token.special)
        self._specials = _alternatives(token.content for token in added.values() if token.special)
        self._strips = any(token.lstrip or token.rstrip for token in added.values())
        spaced = (piece.decode(errors="replace") for piece in pieces if b" " in piece[1:])
        self._before_spaces = frozenset({" ", *(char for piece in spaced for char in _BEFORE_SPACE.findall(piece))})
        """For runs of spaces."""

    def last(self, before: str, after: str) -> int:
        """Return the last place of `before` where tokenization must split, or 0.

        No token crosses a pre-token's end, if the text before splits alike without the rest (runs of spaces may not:
        Llama 3 and GPT-4 split off the last one before a word). In SentencePiece it is before a space that no token has
        after that character.
        """
        text = before + after
        spans = self._pre_tokens(text)
        for start, end in reversed([span for span in spans if span[0] <= len(before)]):
            if at := self._before_a_space(text, start, end, min(end, len(before))):
                return at
            if self._pre_tokens(text[:start]) == [span for span in spans if span[1] <= start]:
                return start
        return 0

    def parts(self, text: str, *, parse_special: bool) -> Iterator[str]:
        """Yield parts of bounded length, unless they cannot be cut."""
        start = 0
        while len(text) - start > 2 * _PART:
            cut = self._cut(text, start, parse_special)
            yield text[start:cut]
            start = cut
        yield text[start:]

    def _cut(self, text: str, start: int, parse_special: bool) -> int:
        for target in range(start + _PART, len(text) - _LOOKAHEAD, _WINDOWS[0]):
            places = {self._place(text, target - window, target, parse_special) for window in _WINDOWS}
            if len(places) == 1 and (place := places.pop()) is not None:
                return place
        return len(text)

    def _place(self, text: str, first: int, target: int, parse_special: bool) -> int | None:
        """Return the last boundary between two places."""
        last = target + _LOOKAHEAD
        specials = [*self._specials.finditer(text, first, last)] if parse_special else []
        if specials:
            starts = [match.start() for match in specials if first < match.start() <= target]
            return starts[-1] if starts and not self._strips else None
        return first + self.last(text[first:target], text[target:last]) or None

    def _before_a_space(self, text: str, start: int, end: int, last: int) -> int:
        for at in range(last, start, -1):
            if text[at : at + 1] != " " or text[at - 1] in self._before_spaces:
                continue
            if [len(self._pre_tokens(half)) for half in (text[start:at], text[at:end])] == [1, 1]:
                return at
        return 0

    def _pre_tokens(self, text: str) -> list[tuple[int, int]]:
        """Return ranges tokenized apart, without added tokens."""
        spans, at = [], 0
        for match in self._added.finditer(text):
            spans += self._ordinary_pre_tokens(text, at, match.start())
            spans.append(match.span())
            at = match.end()
        return spans + self._ordinary_pre_tokens(text, at, len(text))

    def _ordinary_pre_tokens(self, text: str, start: int, end: int) -> list[tuple[int, int]]:
        """Normalize: Gemma's pre-tokenizer splits at spaces that it then has not."""
        normalizer, pre_tokenizer = self._encoder.normalizer, self._encoder.pre_tokenizer
        if start == end or pre_tokenizer is None:
            return [(start, end)] * (end > start)
        splitting = tokenizers.PreTokenizedString(text[start:end])
        if normalizer is not None:
            splitting.normalize(normalizer.normalize)
        pre_tokenizer.pre_tokenize(splitting)
        splits = splitting.get_splits(offset_referential="original", offset_type="char")
        return [(start + first, start + last) for _, (first, last), _ in splits]


def _encoder(backend: tokenizers.Tokenizer, added: Mapping[int, tokenizers.AddedToken]) -> tokenizers.Tokenizer:
    """Return a copy that neither pads nor truncates."""
    encoder = tokenizers.Tokenizer(backend.model)
    encoder.normalizer = backend.normalizer
    encoder.pre_tokenizer = backend.pre_tokenizer
    encoder.add_tokens([added[token_id] for token_id in sorted(added)])
    if {i: t.content for i, t in encoder.get_added_tokens_decoder().items()} != {
        i: t.content for i, t in added.items()
    }:
        # Only the serialized form keeps gaps of ids.
        encoder = tokenizers.Tokenizer.from_str(backend.to_str())
        encoder.no_padding()
        encoder.no_truncation()
    if isinstance(encoder.model, tokenizers.models.BPE):
        # Each thread would cache 10,000 words, 5 MB, even after the model is unloaded. Without, 54K characters take 17
        # ms instead of 14 (Llama 3.1).
        encoder.model._resize_cache(0)
    return encoder


def _alternatives(texts: Iterable[str]) -> re.Pattern[str]:
    """Match the longest text by a tree: thousands one by one take microseconds."""
    tree: dict[str, Any] = {}
    for text in filter(None, texts):
        node = tree
        for char in text:
            node = node.setdefault(char, {})
        node[""] = {}
    return re.compile(_branches(tree) or "(?!)")


def _branches(node: dict[str, Any]) -> str:
    longer = [re.escape(char) + _branches(after) for char, after in node.items() if char]
    if not longer:
        return ""
    branch = longer[0] if len(longer) == 1 and "" not in node else f"(?:{'|'.join(longer)})"
    return f"{branch}?" if "" in node else branch
