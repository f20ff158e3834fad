"""What was measured as figures: sums of pieces and answers of chats become means with intervals. Pure."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from benchmarks.intervals import Interval, Recall, mean, pearson, spearman, wilson
from benchmarks.quality.measuring import BASE, Answer, Sums


class Stored(NamedTuple):
    """Bytes of a token's KV as measured here, and if scales and biases take 16 bits, as in a model's own dtype."""

    here: float
    half: float


@dataclass(frozen=True)
class ReadPiece:
    """A piece that was read: `tokens` are those that something predicts, sums are by the names of variants."""

    kind: str
    tokens: int
    sums: dict[str, Sums]


@dataclass(frozen=True)
class AskedChat:
    """A chat whose questions were asked: answers by the names of variants, in the order of questions."""

    tokens: int
    answers: dict[str, list[Answer]]


@dataclass(frozen=True)
class Measured:
    """All of one run. `stored` and `check` are by variant; `check` is the mean KL on the load check's sample.

    `setup` says what was read how. `elements` is how many elements of K and V a token has.
    """

    setup: dict[str, Any]
    elements: int
    stored: dict[str, Stored]
    check: dict[str, float]
    pieces: list[ReadPiece]
    chats: list[AskedChat]


def figures(measured: Measured) -> dict[str, Any]:
    """What is written, with all samples."""
    pieces, kinds = measured.pieces, dict.fromkeys(piece.kind for piece in measured.pieces)
    by_kind = {kind: [piece for piece in pieces if piece.kind == kind] for kind in kinds}
    found = {name: _variant(measured, name, by_kind) for name in measured.stored}
    return {
        **measured.setup,
        "elements": measured.elements,
        "chats": len(measured.chats),
        "tokens": {kind: sum(piece.tokens for piece in own) for kind, own in by_kind.items()},
        "perplexity": {"all": _perplexity(pieces), **{kind: _perplexity(own) for kind, own in by_kind.items()}},
        "recall": _recall(measured.chats, BASE),
        "variants": found,
        "prediction": prediction([*found.values()]),
        "samples": {
            "pieces": [asdict(piece) for piece in pieces],
            "chats": [asdict(chat) for chat in measured.chats],
        },
    }


def prediction(variants: Sequence[dict[str, Any]]) -> dict[str, float]:
    """How well KL on the load check's sample tells KL and perplexity on texts, as correlations over variants.

    Pearson's of logarithms of KL, and of KL with the logarithm of perplexity's ratio; Spearman's of both.
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
    stored = measured.stored[name]
    return {
        "bytes": stored.half,
        "bits": 8 * stored.half / measured.elements,
        "bits_here": 8 * stored.here / measured.elements,
        "check": measured.check[name],
        **_compared(measured.pieces, name),
        "by_kind": {kind: _compared(own, name) for kind, own in by_kind.items()},
        "recall": _recall(measured.chats, name),
    }


def _compared(pieces: Sequence[ReadPiece], name: str) -> dict[str, dict[str, float]]:
    """Perplexity over that of unquantized KV, mean KL, and the share of equal first choices, each with its interval."""
    tokens, sums, base = (
        [piece.tokens for piece in pieces],
        *([piece.sums[n] for piece in pieces] for n in (name, BASE)),
    )
    excess = [own.loss - plain.loss for own, plain in zip(sums, base, strict=True)]
    return {
        "ratio": mean(excess, tokens).map(math.exp)._asdict(),
        "divergence": mean([each.divergence for each in sums], tokens)._asdict(),
        "same": mean([each.same for each in sums], tokens)._asdict(),
    }


def _perplexity(pieces: Sequence[ReadPiece]) -> float:
    return math.exp(sum(piece.sums[BASE].loss for piece in pieces) / sum(piece.tokens for piece in pieces))


def _recall(chats: Sequence[AskedChat], name: str) -> dict[str, Any] | None:
    """Exact answers, and how much log-probability the right ones lost; None where nothing was asked."""
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
