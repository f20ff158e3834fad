from dataclasses import dataclass


@dataclass(frozen=True)
class PathReport:
    """How one phase is computed, for `models show`; `relative_error` is of the largest output."""

    phase: str
    path: str
    relative_error: float
    note: str = ""
