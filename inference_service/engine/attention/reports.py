from dataclasses import dataclass


@dataclass(frozen=True)
class PathReport:
    """A self-test's result for one phase or path, for `models show`.

    `relative_error` is the largest difference over the largest output.
    """

    phase: str
    path: str
    relative_error: float
    note: str = ""
