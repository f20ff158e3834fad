"""The findings of a self-test, for `models show`."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PathReport:
    """The self-test's result for one phase, or for one of its paths.

    `relative_error` is the largest difference over the largest output. `note` says where the path is taken,
    measurements of products, and which paths failed.
    """

    phase: str
    path: str
    relative_error: float
    note: str = ""
