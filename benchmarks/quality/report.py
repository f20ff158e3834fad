"""What the figures of quality say: tables, and the figures to reach. Pure."""

from typing import Any

from benchmarks.plots import Plot, Point
from benchmarks.quality.scores import DECODE, MOST_LOSS, MOST_RATIO, PREFILL, SIGNIFICANT
from benchmarks.tables import Claim, Table

GOOD, BAD, OPEN = "yes", "**no**", "not shown"
"""What can be said of quantized KV."""


def tables(figures: dict[str, Any]) -> list[Table]:
    """Perplexity and recall of each model, and what the worker says of them."""
    return [_perplexity(figures), _recall(figures), _worker(figures)]


def claims(figures: dict[str, Any]) -> list[Claim]:
    """For each model, with the bits that the worker recommends for it."""
    found = []
    for name, model in figures["models"].items():
        bits = str(model["worker"]["recommended_bits"] or 4)
        of = model["by_bits"][bits]
        excess = (of["ratio"]["high"] - 1) * 100
        loss = -of["recall"]["difference"]["low"] * 100
        found += [
            Claim(
                f"{name}, {bits} bits: perplexity over unquantized, upper end",
                excess,
                100 * (MOST_RATIO - 1),
                True,
                " %",
            ),
            Claim(f"{name}, {bits} bits: recall lost at most", loss, 100 * MOST_LOSS, True, " points"),
        ]
    return found


def plots(figures: dict[str, Any]) -> list[Plot]:
    """By how much perplexity of the assistant's words differs, by model and bits, with 95 % intervals."""
    series: dict[str, list[Point]] = {}
    for name, bits, of in _rows(figures):
        ends = ((of["ratio"][part] - 1) * 100 for part in ("value", "low", "high"))
        series.setdefault(f"{bits}-bit KV", []).append(Point(name, *ends))
    title = "Perplexity of the assistant's words with quantized KV over unquantized, with 95 % intervals"
    limit = (MOST_RATIO - 1) * 100
    return [Plot("perplexity", title, "model", "difference of perplexity (%)", series, limit=limit)]


def verdict(of: dict[str, Any]) -> str:
    """Of one model and its bits: good, bad, or open where there were too few texts to show either.

    Bad is what the figures rule out to be good: perplexity's whole interval is above the limit, or recall lost
    significantly.
    """
    if of["good"]:
        return GOOD
    recall = of["recall"]
    lost = recall["lost"] > recall["gained"] and recall["chance"] < SIGNIFICANT
    return BAD if lost or of["ratio"]["low"] > MOST_RATIO else OPEN


def right(model: dict[str, Any]) -> str:
    """Whether the worker's word at load was right by what was measured here."""
    four, eight = (verdict(model["by_bits"][bits]) for bits in ("4", "8"))
    bits = model["worker"]["recommended_bits"]
    if bits == 4:
        return {GOOD: "right", BAD: "wrong: 4 bits are not enough", OPEN: OPEN}[four]
    if bits == 8:
        if four == GOOD:
            return "cautious: 4 bits are enough"
        return OPEN if OPEN in (four, eight) else {GOOD: "right", BAD: "wrong: 8 bits are not enough"}[eight]
    if GOOD in (four, eight):
        return "wrong"
    return OPEN if OPEN in (four, eight) else "right"


def _percent(interval: dict[str, float], minus: float = 0.0, digits: int = 2) -> str:
    value, low, high = ((interval[name] - minus) * 100 for name in ("value", "low", "high"))
    sign = "+" if minus else ""
    return f"{value:{sign}.{digits}f} % ({low:{sign}.{digits}f} to {high:{sign}.{digits}f})"


def _rows(figures: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [(name, bits, of) for name, model in figures["models"].items() for bits, of in model["by_bits"].items()]


def _perplexity(figures: dict[str, Any]) -> Table:
    rows = []
    for name, bits, of in _rows(figures):
        phases = [_percent(of["by_phase"][phase]["ratio"], 1.0) for phase in (PREFILL, DECODE)]
        rows.append(
            [
                f"{name}, {bits} bits",
                f"{of['plain_perplexity']:.4f}",
                f"{of['perplexity']:.4f}",
                _percent(of["ratio"], 1.0),
                *phases,
                f"{of['divergence']:.1e}",
                f"{of['worst']:.1e}",
                _percent(of["all_tokens"]["ratio"], 1.0),
                f"{of['all_tokens']['divergence']:.1e}",
            ]
        )
    columns = (
        "model and KV",
        "unquantized",
        "quantized",
        "difference",
        "prefilled",
        "decoded",
        "mean KL",
        "worst token",
        "all tokens",
        "KL of all",
    )
    note = (
        "Perplexity of the assistant's words in held-out dialogues, with 95 % intervals by a paired bootstrap over "
        "dialogues; mean KL divergence in nats, and by how many nats the right token's log-probability fell at most. "
        "The last two columns are over all tokens, the user's included, which training gave no reason to predict: "
        "there the models are not certain, and what quantization changes shows that cannot be seen in what they say."
    )
    return Table("Perplexity with quantized KV", columns, rows, note)


def _recall(figures: dict[str, Any]) -> Table:
    rows = []
    for name, bits, of in _rows(figures):
        found = of["recall"]
        rows.append(
            [
                f"{name}, {bits} bits",
                f"{found['asked']}",
                _percent(found["plain_share"], digits=1),
                _percent(found["share"], digits=1),
                f"{found['lost']} / {found['gained']}",
                f"{found['chance']:.2g}",
                _percent(found["difference"], digits=1),
            ]
        )
    columns = ("model and KV", "questions", "unquantized", "quantized", "lost / gained", "p", "difference")
    note = (
        "An answer is right when every token of it is the first choice. Wilson's intervals of the shares; McNemar's "
        "exact test; Bonett and Price's interval of the paired difference. All at 95 %."
    )
    return Table("Recall with quantized KV", columns, rows, note)


def _worker(figures: dict[str, Any]) -> Table:
    rows = []
    for name, model in figures["models"].items():
        said = model["worker"]
        kl = [f"{said[key]:.2g}" if said[key] is not None else "–" for key in ("kl_4_bits", "kl_8_bits")]
        good = [verdict(model["by_bits"][bits]) for bits in ("4", "8")]
        rows.append([name, str(model["trained_to"]), *kl, str(said["recommended_bits"] or "none"), *good, right(model)])
    columns = (
        "model",
        "trained to",
        "KL with 4 bits",
        "with 8",
        "recommended bits",
        "4 bits good here",
        "8 bits good",
        "so it was",
    )
    note = (
        "The worker's check at a model's first load, over its own short text, beside what was measured here. Good is: "
        f"perplexity's interval ends below +{(MOST_RATIO - 1) * 100:.0f} %, recall has no significant loss, and its "
        f"interval excludes a loss above {MOST_LOSS * 100:.0f} points. What is neither good nor ruled out is not "
        "shown: it takes more texts."
    )
    return Table("What the worker recommends", columns, rows, note)
