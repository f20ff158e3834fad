"""Where a text can be cut so that its parts have the tokens of the whole."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import tokenizers

_BEFORE_SPACE = re.compile(r"([^ ])(?= )")
_PART = 1 << 16
"""Characters that are tokenized at once: of millions, what tokenizing keeps of each would be gigabytes."""
_WINDOWS = (2048, 1362)
"""Characters before a cut that are looked at, twice. Where both agree, it is not the window's beginning that made the
boundary: their difference is no multiple of three, by which digits are grouped."""
_LOOKAHEAD = 256


class Boundaries:
    """Finds boundaries for one tokenizer. Thread-safe."""

    def __init__(
        self,
        encoder: tokenizers.Tokenizer,
        added: Mapping[int, tokenizers.AddedToken],
        pieces: Iterable[bytes],
    ) -> None:
        """`pieces` are what the vocabulary's tokens stand for."""
        self._encoder = encoder
        self._added = alternatives(token.content for token in added.values() if not token.special)
        self._specials = alternatives(token.content for token in added.values() if token.special)
        self._strips = any(token.lstrip or token.rstrip for token in added.values())
        self._before_spaces = _before_spaces(pieces)

    def last(self, before: str, after: str) -> int:
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

    def parts(self, text: str, *, parse_special: bool) -> Iterator[str]:
        """The text in parts of bounded length, whose tokens are those of the whole.

        Longer parts are what cannot be cut: a word, or a text without spaces where only spaces are boundaries.
        """
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
        """The last boundary between two places, seen from the first. Before a special token is one, too."""
        last = target + _LOOKAHEAD
        specials = [*self._specials.finditer(text, first, last)] if parse_special and self._specials else []
        if specials:
            starts = [match.start() for match in specials if first < match.start() <= target]
            return starts[-1] if starts and not self._strips else None
        return first + self.last(text[first:target], text[target:last]) or None

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
        for match in self._added.finditer(text) if self._added else ():
            spans += self._ordinary_pre_tokens(text, at, match.start())
            spans.append(match.span())
            at = match.end()
        return spans + self._ordinary_pre_tokens(text, at, len(text))

    def _ordinary_pre_tokens(self, text: str, start: int, end: int) -> list[tuple[int, int]]:
        """Of normalized text: Gemma has no spaces any more when its pre-tokenizer splits at spaces."""
        normalizer, pre_tokenizer = self._encoder.normalizer, self._encoder.pre_tokenizer
        if start == end or pre_tokenizer is None:
            return [(start, end)] * (end > start)
        splitting = tokenizers.PreTokenizedString(text[start:end])
        if normalizer is not None:
            splitting.normalize(normalizer.normalize)
        pre_tokenizer.pre_tokenize(splitting)
        splits = splitting.get_splits(offset_referential="original", offset_type="char")
        return [(start + first, start + last) for _, (first, last), _ in splits]


def alternatives(texts: Iterable[str]) -> "re.Pattern[str] | None":
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


def _before_spaces(pieces: Iterable[bytes]) -> frozenset[str]:
    """The characters that some token has before a space, and the space, which a run of spaces may have."""
    spaced = (piece.decode(errors="replace") for piece in pieces if b" " in piece[1:])
    return frozenset({" ", *(char for piece in spaced for char in _BEFORE_SPACE.findall(piece))})
