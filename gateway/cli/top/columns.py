"""Tables as lines, each one row high: columns and then the ends of names are left out where the width is short."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from rich.text import Text

_GAP: Final = 2
_NARROW: Final = 16
"""Cells that the first column keeps while there are other columns to leave out."""
_NARROWEST: Final = 4


class Column(NamedTuple):
    """A column. Of those that do not fit, the one with the highest `rank` goes first; those of rank 0 stay."""

    title: str
    rank: int = 0
    right: bool = True


@dataclass(frozen=True)
class Grid:
    """Rows of cells below titles; a row has a cell for each column. Cells are single lines."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Text]]

    def lines(self, width: int) -> list[Text]:
        """The titles and the rows, none wider than `width`."""
        cells = [[Text(column.title, "dim") for column in self.columns], *self.rows]
        widths = [max(row[index].cell_len for row in cells) for index in range(len(self.columns))]
        kept = self._kept(widths, width)
        first = kept[0]
        others = sum(_GAP + widths[index] for index in kept[1:])
        widths[first] = min(widths[first], max(_NARROWEST, width - others))
        return [self._line(row, kept, widths, width) for row in cells]

    def _kept(self, widths: Sequence[int], width: int) -> list[int]:
        kept = list(range(len(self.columns)))
        while True:
            needed = min(widths[kept[0]], _NARROW) + sum(_GAP + widths[index] for index in kept[1:])
            last = max(kept[1:], key=lambda index: (self.columns[index].rank, index), default=0)
            if needed <= width or not last or not self.columns[last].rank:
                return kept
            kept.remove(last)

    def _line(self, row: Sequence[Text], kept: Sequence[int], widths: Sequence[int], width: int) -> Text:
        line = Text(no_wrap=True, overflow="ellipsis")
        for index in kept:
            cell = row[index].copy()
            cell.truncate(widths[index], overflow="ellipsis")
            free = widths[index] - cell.cell_len
            if self.columns[index].right:
                cell.pad_left(free)
            elif index != kept[-1]:
                cell.pad_right(free)
            line.append_text(cell if index == kept[0] else Text(" " * _GAP).append_text(cell))
        line.truncate(width, overflow="ellipsis")
        return line
