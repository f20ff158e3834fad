"""Tokens as bytes: what a token stands for exactly, and encoding that user text cannot break out of.

Works on a Hugging Face fast tokenizer. All methods are thread-safe (the underlying encoders are not mutated), and
encoding lets go of the GIL (`encode_batch`: 200K characters stall other threads for 4 ms, `encode` for 71).
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import tokenizers

from inference_service.text.pieces import token_pieces

_LEAD = "\x01"
"""No token but its own byte's has it, so that no token goes from it into the text behind it."""
_BEFORE_SPACE = re.compile(r"([^ ])(?= )")


class Tokenizer:
    """`backend` is a tokenizers.Tokenizer. Raises FailedPrecondition where tokens cannot be told as bytes."""

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
        self._added_pattern = _alternatives(token.content for token in added.values() if not token.special)
        self._pieces = token_pieces(backend)
        self.vocab_size = len(self._pieces)
        self.byte_ids = {piece[0]: i for i, piece in enumerate(self._pieces) if len(piece) == 1 and i not in added}
        """Tokens that stand for a single byte, by that byte."""
        self.prefix_ids = _prefix_ids(backend, self.special_ids)
        self._lead: list[int] = []
        lead = self.encode(_LEAD, parse_special=False)
        if self.decode(lead) == f" {_LEAD}".encode():
            self._lead = lead
        self.space_after_special = bool(self._lead) and self._puts_space_after_special()
        """Whether text behind a special token gets the space that SentencePiece tokenizers put before a text."""
        self._before_spaces = _before_spaces(self._pieces)

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
        of spaces may not: Llama 3 and GPT-4 split the last one off where a word follows). Where nothing splits, as in
        SentencePiece tokenizers, it is before a space that no token has behind that character. 0 where there is none.
        """
        text = before + after
        spans = self._pre_tokens(text)
        for start, end in reversed([span for span in spans if span[0] <= len(before)]):
            if at := self._before_a_space(text, start, end, min(end, len(before))):
                return at
            if self._pre_tokens(text[:start]) == [span for span in spans if span[1] <= start]:
                return start
        return 0

    def _before_a_space(self, text: str, start: int, end: int, last: int) -> int:
        """The last place up to `last` inside a pre-token that no token of the vocabulary can span; 0 for none."""
        for at in range(last, start, -1):
            if text[at : at + 1] != " " or text[at - 1] in self._before_spaces:
                continue
            if [len(self._pre_tokens(half)) for half in (text[start:at], text[at:end])] == [1, 1]:
                return at
        return 0

    def _pre_tokens(self, text: str) -> list[tuple[int, int]]:
        """Character ranges that are tokenized apart. Added tokens are taken out of the text before all else."""
        spans, at = [], 0
        for match in self._added_pattern.finditer(text) if self._added_pattern else ():
            spans += self._ordinary_pre_tokens(text, at, match.start())
            spans.append(match.span())
            at = match.end()
        return spans + self._ordinary_pre_tokens(text, at, len(text))

    def _ordinary_pre_tokens(self, text: str, start: int, end: int) -> list[tuple[int, int]]:
        """Of normalized text: Gemma has no spaces any more when its pre-tokenizer splits at spaces."""
        normalizer, pre_tokenizer = self._parsing.normalizer, self._parsing.pre_tokenizer
        if start == end or pre_tokenizer is None:
            return [(start, end)] * (end > start)
        splitting = tokenizers.PreTokenizedString(text[start:end])
        if normalizer is not None:
            splitting.normalize(normalizer.normalize)
        pre_tokenizer.pre_tokenize(splitting)
        splits = splitting.get_splits(offset_referential="original", offset_type="char")
        return [(start + first, start + last) for _, (first, last), _ in splits]

    def _puts_space_after_special(self) -> bool:
        special = next(iter(self._specials), "")
        return self.decode(self.encode(f"{special}a", parse_special=True)) == f"{special} a".encode()


def _encoder(backend: tokenizers.Tokenizer, added: Mapping[int, tokenizers.AddedToken]) -> tokenizers.Tokenizer:
    """A tokenizer of its own over the same vocabulary, of which one copy is enough; it neither pads nor truncates."""
    encoder = tokenizers.Tokenizer(backend.model)
    encoder.normalizer = backend.normalizer
    encoder.pre_tokenizer = backend.pre_tokenizer
    encoder.add_tokens([added[token_id] for token_id in sorted(added)])
    if {i: t.content for i, t in encoder.get_added_tokens_decoder().items()} != {
        i: t.content for i, t in added.items()
    }:
        # Their ids have gaps, which only the serialized form keeps.
        encoder = tokenizers.Tokenizer.from_str(backend.to_str())
        encoder.no_padding()
        encoder.no_truncation()
    return encoder


def _before_spaces(pieces: Iterable[bytes]) -> frozenset[str]:
    """The characters that some token has before a space, and the space, which a run of spaces may have."""
    spaced = (piece.decode(errors="replace") for piece in pieces if b" " in piece[1:])
    return frozenset({" ", *(char for piece in spaced for char in _BEFORE_SPACE.findall(piece))})


def _alternatives(texts: Iterable[str]) -> "re.Pattern[str] | None":
    """What finds the longest of the texts; as a tree, because one by one a thousand of them take microseconds a try."""
    tree: dict[str, Any] = {}
    for text in filter(None, texts):
        node = tree
        for char in text:
            node = node.setdefault(char, {})
        node[""] = {}
    return re.compile(_branches(tree)) if tree else None


def _branches(node: dict[str, Any]) -> str:
    longer = [re.escape(char) + _branches(after) for char, after in node.items() if char]
    if not longer:
        return ""
    branch = longer[0] if len(longer) == 1 and "" not in node else f"(?:{'|'.join(longer)})"
    return f"{branch}?" if "" in node else branch


def _prefix_ids(backend: tokenizers.Tokenizer, special_ids: frozenset[int]) -> tuple[int, ...]:
    prefix = []
    for token_id in backend.encode("a", add_special_tokens=True).ids:
        if token_id not in special_ids:
            break
        prefix.append(token_id)
    return tuple(prefix)
