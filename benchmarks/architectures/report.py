"""What the figures of architectures say: a table, the figures to reach, and a plot. Pure."""

from collections.abc import Iterator
from typing import Any, Final

from benchmarks.plots import Plot, Point
from benchmarks.tables import Claim, Table, percent

MOST_LOSS: Final = 0.02
"""Recall within noise: its interval excludes a loss larger than this."""


def tables(figures: dict[str, Any]) -> list[Table]:
    """Recall of each model, and how far what it expects of all tokens is from unquantized."""
    rows = []
    for name, _, of in _rows(figures):
        found = of["recall"]
        rows.append(
            [
                name,
                f"{found['asked']}",
                percent(found["plain_share"]),
                percent(found["share"]),
                f"{found['lost']} / {found['gained']}",
                f"{found['chance']:.2g}",
                percent(found["difference"]),
                f"{of['all_tokens']['divergence']:.1e}",
            ]
        )
    columns = ("model and KV", "questions", "unquantized", "quantized", "lost / gained", "p", "difference", "mean KL")
    note = (
        "An answer is right when every token of it is the first choice. Wilson's intervals of the shares; McNemar's "
        "exact test; Bonett and Price's interval of the paired difference. All at 95 %. Mean KL divergence in nats "
        "over all tokens, the user's included, of which the models are not certain."
    )
    return [Table("Recall with quantized KV by architecture", columns, rows, note)]


def claims(figures: dict[str, Any]) -> list[Claim]:
    """For each model with 4 bits."""
    return [
        Claim(
            f"{name}: recall lost at most", -of["recall"]["difference"]["low"] * 100, 100 * MOST_LOSS, True, " points"
        )
        for name, bits, of in _rows(figures)
        if bits == "4"
    ]


def plots(figures: dict[str, Any]) -> list[Plot]:
    """Divergence over all tokens by model and bits."""
    series: dict[str, list[Point]] = {}
    for model, measured in figures["models"].items():
        for bits, of in measured["by_bits"].items():
            kl = of["all_tokens"]["divergence"]
            series.setdefault(f"{bits}-bit KV", []).append(Point(model, kl, kl, kl))
    title = "KL divergence of quantized KV from unquantized over all tokens"
    return [Plot("divergence", title, "model", "mean KL divergence (nats)", series, log=True)]


def _rows(figures: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Each model with each bits: how the row is called, the bits, and what was found. Plain, if nothing else is said:
    before there were schemes, results did not name theirs."""
    for model, measured in figures["models"].items():
        for bits, of in measured["by_bits"].items():
            yield f"{model}, {bits} bits, {measured.get('scheme', 'plain')}", bits, of
