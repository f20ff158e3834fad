"""Figures of measurements: sums of pieces and answers of chats become means with intervals. Pure."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import reduce
from typing import Any, NamedTuple

from benchmarks.intervals import Interval, Recall, mean, pearson, spearman, wilson
from benchmarks.quality.measuring import BASE, Answer, Sums
from benchmarks.quality.spread import quantile


class Stored(NamedTuple):
    """Bytes of a token's KV as measured, and with 16-bit scales and biases."""

    here: float
    half: float


@dataclass(frozen=True)
class ReadPiece:
    """Sums of a piece by variant, and by part of the context."""

    kind: str
    sums: dict[str, dict[int, Sums]]

    def of(self, name: str, part: int | None = None) -> Sums | None:
        """Return a variant's sums; None where the piece does not reach that part."""
        found = [sums for place, sums in self.sums[name].items() if part in (None, place)]
        return reduce(Sums.plus, found) if found else None


@dataclass(frozen=True)
class AskedChat:
    tokens: int
    answers: dict[str, list[Answer]]


@dataclass(frozen=True)
class Measured:
    """`check` is a variant's mean KL on the load check's sample; `bases` names the bases that are not `BASE`; a token
    has `elements` of K and V.
    """

    setup: dict[str, Any]
    elements: int
    stored: dict[str, Stored]
    check: dict[str, float]
    pieces: list[ReadPiece]
    chats: list[AskedChat]
    bases: dict[str, str] = field(default_factory=dict)


def figures(measured: Measured) -> dict[str, Any]:
    pieces, kinds = measured.pieces, dict.fromkeys(piece.kind for piece in measured.pieces)
    by_kind = {kind: [piece for piece in pieces if piece.kind == kind] for kind in kinds}
    found = {name: _variant(measured, name, by_kind) for name in measured.stored}
    return {
        **measured.setup,
        "elements": measured.elements,
        "chats": len(measured.chats),
        "tokens": {kind: _sum(own, BASE).tokens for kind, own in by_kind.items()},
        "perplexity": {"all": _perplexity(pieces), **{kind: _perplexity(own) for kind, own in by_kind.items()}},
        "bases": {base: _perplexity(pieces, base) for base in dict.fromkeys(measured.bases.values())},
        "recall": _recall(measured.chats, BASE),
        "recall_by_tokens": _by_tokens(measured.chats, BASE),
        "variants": found,
        "prediction": prediction([of for of in found.values() if "check" in of]),
        "samples": {
            "pieces": [asdict(piece) for piece in pieces],
            "chats": [asdict(chat) for chat in measured.chats],
        },
    }


def prediction(variants: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Correlate the load check's KL with KL and perplexity on texts, over variants: Pearson's of logarithms, and
    Spearman's.
    """
    check = [of["check"] for of in variants]
    divergence = [of["divergence"]["value"] for of in variants]
    loss = [math.log(of["ratio"]["value"]) for of in variants]
    known = [(a, b) for a, b in zip(check, divergence, strict=True) if a > 0 and b > 0]
    return {
        "divergence_pearson": pearson([math.log(a) for a, _ in known], [math.log(b) for _, b in known]),
        "divergence_spearman": spearman(check, divergence),
        "perplexity_pearson": pearson(check, loss),
        "perplexity_spearman": spearman(check, loss),
    }


def _variant(measured: Measured, name: str, by_kind: dict[str, list[ReadPiece]]) -> dict[str, Any]:
    stored, pieces, base = measured.stored[name], measured.pieces, measured.bases.get(name, BASE)
    own = base == BASE
    parts = sorted({place for piece in pieces for place in piece.sums[BASE]})
    return {
        "bytes": stored.half,
        "bits": 8 * stored.half / measured.elements,
        "bits_here": 8 * stored.here / measured.elements,
        **({"check": measured.check[name]} if own else {"base": base}),
        **_compared(pieces, name, base),
        "by_kind": {kind: _compared(of_kind, name, base) for kind, of_kind in by_kind.items()},
        "by_part": {str(place): _compared(pieces, name, base, place) for place in parts},
        "recall": _recall(measured.chats, name) if own else None,
        "recall_by_tokens": _by_tokens(measured.chats, name) if own else {},
    }


def _compared(
    pieces: Sequence[ReadPiece], name: str, base: str, part: int | None = None
) -> dict[str, dict[str, float]]:
    both = [(own, plain) for piece in pieces if (own := piece.of(name, part)) and (plain := piece.of(base, part))]
    tokens, spreads = [own.tokens for own, _ in both], [own.spread for own, _ in both]
    return {
        "ratio": mean([own.loss - plain.loss for own, plain in both], tokens).map(math.exp)._asdict(),
        "divergence": mean([own.divergence for own, _ in both], tokens)._asdict(),
        "divergence_99": quantile(spreads, 0.99)._asdict(),
        "divergence_999": quantile(spreads, 0.999)._asdict(),
        "same": mean([own.same for own, _ in both], tokens)._asdict(),
    }


def _sum(pieces: Sequence[ReadPiece], name: str) -> Sums:
    return reduce(Sums.plus, (sums for piece in pieces if (sums := piece.of(name))))


def _perplexity(pieces: Sequence[ReadPiece], name: str = BASE) -> float:
    found = _sum(pieces, name)
    return math.exp(found.loss / found.tokens)


def _by_tokens(chats: Sequence[AskedChat], name: str) -> dict[str, Any]:
    sizes = sorted({chat.tokens for chat in chats})
    return {str(size): _recall([chat for chat in chats if chat.tokens == size], name) for size in sizes}


def _recall(chats: Sequence[AskedChat], name: str) -> dict[str, Any] | None:
    """Return exact answers, and the log-probability that right ones lost; None where nothing was asked."""
    if not chats:
        return None
    base, own = ([answer for chat in chats for answer in chat.answers[each]] for each in (BASE, name))
    found = Recall.of([(plain.right, given.right) for plain, given in zip(base, own, strict=True)])
    by_chat = [
        sum(given.logprob - plain.logprob for plain, given in zip(chat.answers[BASE], chat.answers[name], strict=True))
        for chat in chats
    ]
    change: Interval = mean(by_chat, [len(chat.answers[BASE]) for chat in chats])
    return {
        **asdict(found),
        "right": found.quantized,
        "share": wilson(found.quantized, found.asked)._asdict(),
        "difference": found.difference._asdict(),
        "chance": found.chance,
        "logprob": sum(answer.logprob for answer in own) / len(own),
        "logprob_change": change._asdict(),
    }
