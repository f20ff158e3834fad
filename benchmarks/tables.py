"""Tables of figures, and claims that are met or missed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import rich.table
from rich.console import Console
from rich.markup import escape


@dataclass(frozen=True)
class Table:
    """The first column is text, the others numbers with their units. `note` is prose below."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def markdown(self) -> str:
        lines = [
            "| " + " | ".join(self.columns) + " |",
            "|---|" + "---:|" * (len(self.columns) - 1),
            *("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in self.rows),
        ]
        return "\n".join([f"**{self.title}**", "", *lines, *(["", self.note] if self.note else [])])


@dataclass(frozen=True)
class Claim:
    """`value` is to be at most or at least `limit`, in `unit`."""

    text: str
    value: float
    limit: float
    at_most: bool
    unit: str = "x"

    @property
    def met(self) -> bool:
        return self.value <= self.limit if self.at_most else self.value >= self.limit

    def row(self) -> tuple[str, str, str, str]:
        bound = "at most" if self.at_most else "at least"
        limit, value = (f"{number:.3g}{self.unit}" for number in (self.limit, self.value))
        return self.text, f"{bound} {limit}", value, "met" if self.met else "**missed**"


def claims_table(claims: Sequence[Claim]) -> Table:
    return Table("Figures to reach", ("what", "to reach", "measured", ""), [claim.row() for claim in claims])


def show(tables: Sequence[Table]) -> None:
    console = Console(width=max(120, Console().width))
    for table in tables:
        shown = rich.table.Table(title=table.title, caption=table.note or None)
        for number, column in enumerate(table.columns):
            shown.add_column(column, justify="right" if number else "left")
        for row in table.rows:
            shown.add_row(*map(escape, row))
        console.print(shown)


def milliseconds(summary: dict[str, Any]) -> str:
    """Return the median of a summary in seconds, with its spread: "155 ms (150–161)"."""
    median, low, high = (summary[name] * 1000 for name in ("median", "min", "max"))
    digits = 0 if median >= 10 else 1
    return f"{median:.{digits}f} ms ({low:.{digits}f}–{high:.{digits}f})"


def interval(found: Mapping[str, float], form: str) -> str:
    """Return an interval in the format `form`: "0.046 (0.041 to 0.052)"."""
    value, low, high = (f"{found[end]:{form}}" for end in ("value", "low", "high"))
    return f"{value} ({low} to {high})"


def percent(found: Mapping[str, float], form: str = ".1f", minus: float = 0.0) -> str:
    """Return an interval of shares, less so much: "4.3 % (3.9 to 4.7)"."""
    value, low, high = (f"{(found[end] - minus) * 100:{form}}" for end in ("value", "low", "high"))
    return f"{value} % ({low} to {high})"


def spread(summary: dict[str, Any], digits: int = 0, unit: str = "") -> str:
    """Return the median of a summary with its spread: "1.52x (1.40–1.61)"."""
    median, low, high = (f"{summary[name]:.{digits}f}" for name in ("median", "min", "max"))
    return f"{median}{unit} ({low}–{high})"
