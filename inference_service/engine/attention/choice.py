"""Which way one query per row is computed, by how many rows there are and how long they are."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Shape(NamedTuple):
    """A decode step: rows of the batch, and tokens of each."""

    rows: int
    tokens: int


MEASURED = (Shape(1, 1024), Shape(1, 16384), Shape(8, 1024), Shape(8, 8192))
"""What is measured stands for all that is like it: one row and a batch, short and long."""

_BATCH = 3
_LONG = 4096


def like(rows: int, tokens: int) -> Shape:
    """The measured shape that stands for this one."""
    one, batch = MEASURED[:2], MEASURED[2:]
    return (batch if rows >= _BATCH else one)[tokens >= _LONG]


Figures = Mapping[Shape, Mapping[str, float]]
"""Seconds of one layer's attention, by shape and path."""


class PathChoice:
    """The path for each shape: the fastest where speed was measured, else the first that is right."""

    def __init__(self, right: Sequence[str], figures: Figures | None = None) -> None:
        self._default = right[0]
        self._figures = figures or {}
        self._fastest = {shape: min(right, key=seconds.__getitem__) for shape, seconds in self._figures.items()}

    def at(self, rows: int, tokens: int) -> str:
        """The path for so many rows of so many tokens."""
        return self._fastest.get(like(rows, tokens), self._default)

    @property
    def taken(self) -> list[str]:
        """The paths that are taken somewhere, in the order of the shapes."""
        return list(dict.fromkeys([self.at(*shape) for shape in MEASURED]))

    def reason(self, path: str) -> str:
        """Where a path is taken and what was measured there; empty where nothing was."""
        return "; ".join(
            f"{shape.rows} x {shape.tokens} tokens: "
            + ", ".join(f"{name} {1e6 * each:.0f} µs" for name, each in sorted(seconds.items(), key=lambda x: x[1]))
            for shape, seconds in self._figures.items()
            if self._fastest[shape] == path
        )
