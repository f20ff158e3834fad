"""The findings of a self-test, for `models show`."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PathReport:
    """The self-test's finding for one phase, or for one of the paths that a phase takes.

    `relative_error` is the largest difference over the largest output. `note` says where the path is taken, what was
    measured of products, and which paths are not taken because they fail.
    """

    phase: str
    path: str
    relative_error: float
    note: str = ""
