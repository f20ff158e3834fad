"""The packages around the gateway's core, *rings*: the core imports none of them."""

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Final

RINGS: Final = ("gateway.cluster", "gateway.workflows")
"""In the order in which they are attached: workflows use the cluster's worker."""


def is_installed(ring: str) -> bool:
    spec = find_spec(ring)
    return spec is not None and spec.origin is not None  # None: what a deleted package has left


def of_rings(name: str) -> Iterator[ModuleType]:
    """Import the module `name` of each ring that is installed."""
    return (import_module(f"{ring}.{name}") for ring in RINGS if is_installed(ring))
