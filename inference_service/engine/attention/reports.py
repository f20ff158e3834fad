from dataclasses import dataclass


@dataclass(frozen=True)
class PathReport:
    """`relative_error` is of the largest output."""

    phase: str
    path: str
    relative_error: float
    note: str = ""
