"""Tokens as bytes: what a token stands for exactly, and encoding that user text cannot break out of.

Works on a Hugging Face fast tokenizer. All methods are thread-safe (the underlying encoders are not mutated), and
encoding lets go of the GIL (`encode_batch`: 200K characters stall other threads for 4 ms, `encode` for 71).
"""

import hashlib
from collections.abc import Iterable, Mapping

import tokenizers

from inference_service.text.boundaries import Boundaries, alternatives
from inference_service.text.length import LeastTokens
from inference_service.text.pieces import token_pieces

_LEAD = "\x01"
"""No token but its own byte's has it, so that no token goes from it into the text behind it."""


class Tokenizer:
    """`backend` is a tokenizers.Tokenizer. Raises ValueError where tokens cannot be told as bytes."""

    def __init__(self, backend: tokenizers.Tokenizer, eos_ids: Iterable[int]) -> None:
        self.hash = hashlib.sha256(backend.to_str().encode()).hexdigest()
        self.eos_ids = frozenset(eos_ids)
        added = backend.get_added_tokens_decoder()
        self._parsing = _encoder(backend, added)
        self._literal = _encoder(backend, added)
        self._literal.encode_special_tokens = True
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self._specials = {added[i].content: i for i in self.special_ids}
        self._special_pattern = alternatives(self._specials)
        self._pieces = token_pieces(backend)
        self.vocab_size = len(self._pieces)
        self.byte_ids = {piece[0]: i for i, piece in enumerate(self._pieces) if len(piece) == 1 and i not in added}
        """Tokens that stand for a single byte, by that byte."""
        self._boundaries = Boundaries(self._parsing, added, self._pieces)
        self._least_tokens = LeastTokens(backend, self._pieces, self.byte_ids)
        self.prefix_ids = _prefix_ids(backend, self.special_ids)
        self._lead: list[int] = []
        lead = self.encode(_LEAD, parse_special=False)
        if self.decode(lead) == f" {_LEAD}".encode():
            self._lead = lead
        self.space_after_special = bool(self._lead) and self._puts_space_after_special()
        """Whether text behind a special token gets the space that SentencePiece tokenizers put before a text."""

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

    def break_specials(self, text: str, mark: str) -> str:
        """`text` with a mark behind the first character of each special token that has more than one."""
        pattern = self._special_pattern
        return text if pattern is None else pattern.sub(lambda found: _broken(found[0], mark), text)

    def has_special(self, text: str) -> bool:
        """Whether a special token is spelled somewhere in `text`."""
        return self._special_pattern is not None and self._special_pattern.search(text) is not None

    def is_special(self, text: bytes) -> bool:
        """Whether `text` spells exactly one special token."""
        return text.decode(errors="replace") in self._specials

    def special_id(self, text: str) -> int:
        """The id of the special token spelled `text`."""
        return self._specials[text]

    def encode(
        self, text: str, *, parse_special: bool, continues: bool = False, enough: int | None = None
    ) -> list[int]:
        """Tokens of `text`, without any BOS. Special tokens in it are parsed, or taken as ordinary text.

        `continues` says that other text stands before it: SentencePiece tokenizers, which put a space before whatever
        they get, then put none. A long text is tokenized in parts, and no further where there are more tokens than
        `enough`.
        """
        token_ids: list[int] = []
        for part in self._boundaries.parts(text, parse_special=parse_special):
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
        """The last place in `before` at which whole tokenization of `before + after` must also split, or 0."""
        return self._boundaries.last(before, after)

    def certainly_exceeds(self, text: bytes, tokens: int) -> bool:
        """Whether `text` has more tokens than that, told without tokenizing it; False where that cannot be said."""
        return self._least_tokens.exceed(text, tokens)

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


def _broken(special: str, mark: str) -> str:
    return special if len(special) == 1 else f"{special[0]}{mark}{special[1:]}"


def _prefix_ids(backend: tokenizers.Tokenizer, special_ids: frozenset[int]) -> tuple[int, ...]:
    prefix = []
    for token_id in backend.encode("a", add_special_tokens=True).ids:
        if token_id not in special_ids:
            break
        prefix.append(token_id)
    return tuple(prefix)
