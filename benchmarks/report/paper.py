"""The paper's own figures, and ours beside them.

From the table of times to first token in the public draft of "Agent Memory Below the Prompt" (arXiv:2603.04428, 2026):
Apple Mac mini M4 Pro with 24 GB, Q4 weights and Q4 KV, medians of three. Ours are on other hardware and with other
weights: a ratio says something of each system on its own machine, seconds compare nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.tables import Table

LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768)
NOTE = (
    "First token cold, warm and hot, and how many times as fast warm and hot are as cold, each on its own machine. The "
    "paper's are from its public draft; its abstract (arXiv:2603.04428) says of cold over warm: Gemma 3 12B 22–136x "
    "and DeepSeek-Coder-V2-Lite 11–76x at 4K–32K, Llama 3.1 8B 24–111x at 4K–16K. A slow prefill makes a large ratio: "
    "an H100 computes a prompt about twenty times as fast as an M4 Pro, and reads files no faster. "
    "So rows do not compare with one another; within a row, the figures are of one system."
)


class Times(NamedTuple):
    """Milliseconds to the first token at `LENGTHS`, None where not measured."""

    cold: Sequence[float | None]
    warm: Sequence[float | None]
    hot: Sequence[float | None]


PAPER = {
    "paper: Gemma 3 12B, Apple M4 Pro": Times(
        (4007, 7363, 15502, 32944, 71132, 165189), (527, 532, 513, 590, 808, 1621), (668, 688, 709, 762, 874, 1276)
    ),
    "paper: DeepSeek-Coder-V2-Lite, Apple M4 Pro": Times(
        (1090, 1884, 3949, 8541, 19193, 48258), (217, 285, 252, 307, 430, 697), (356, 376, 372, 412, 484, 652)
    ),
}


def beside_the_paper(ours: Mapping[str, Mapping[str, Any]]) -> Table:
    """The paper's rows, and one for each result of `ttft`: by what is measured, the JSON that it wrote."""
    rows = {**PAPER, **{f"ours: {name}": times(found["figures"]) for name, found in ours.items()}}
    columns = ("", *(f"{length // 1024}K" for length in LENGTHS))
    return Table(
        "Cold, warm and hot, the paper's and ours", columns, [[name, *_cells(row)] for name, row in rows.items()], NOTE
    )


def times(figures: Mapping[str, Any]) -> Times:
    """Of the figures that `ttft` writes; a length counts as the one of `LENGTHS` that it is within a tenth of."""
    found: dict[int, Mapping[str, Any]] = {}
    for length, row in figures["lengths"].items():
        near = min(LENGTHS, key=lambda each: abs(each - int(length)))
        if abs(near - int(length)) <= near / 10:
            found[near] = row

    def column(name: str) -> list[float | None]:
        rows = (found.get(length, {}) for length in LENGTHS)
        return [row[name]["median"] * 1000 if name in row else None for row in rows]

    return Times(column("cold"), column("warm"), column("hot"))


def _cells(row: Times) -> Iterator[str]:
    for cold, warm, hot in zip(*row, strict=True):
        if cold is None or warm is None or hot is None:
            yield ""
        else:
            yield f"{cold:,.0f}, {warm:,.0f}, {hot:,.0f} ms: {cold / warm:.0f}x, {cold / hot:.0f}x"
