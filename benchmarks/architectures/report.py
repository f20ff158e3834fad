"""What the figures of architectures say: a table. Pure."""

from collections.abc import Iterator
from typing import Any

from benchmarks.tables import Table, percent


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


def _rows(figures: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Each model with each bits: how the row is called, the bits, and what was found."""
    for model, measured in figures["models"].items():
        for bits, of in measured["by_bits"].items():
            yield f"{model}, {bits} bits, {measured['scheme']}", bits, of
