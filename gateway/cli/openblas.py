"""Whether the worker is started with OpenBLAS.

On Linux without a GPU MLX calls the BLAS that its libblas.so.3 resolves to, which is the reference one: 7 GFLOP/s on
two cores, where OpenBLAS reaches 222. Preloading it into the worker needs no other change.
"""

import ctypes.util
import os
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

_DEBIAN = "*/openblas-pthread/libopenblas.so.0"
_PACKAGE = "apt-get install libopenblas0-pthread"


class Preload(NamedTuple):
    """Variables that the worker gets beyond ours, and a line for the user; both may be empty."""

    environment: dict[str, str]
    message: str


def preload(
    platform: str, library: str | None, distributions: Iterable[str], environment: Mapping[str, str]
) -> Preload:
    """What to do with `library` on `platform`, given the names of the installed distributions."""
    if platform != "linux" or any(name.lower().replace("_", "-").startswith("mlx-cuda") for name in distributions):
        return Preload({}, "")
    before = environment.get("LD_PRELOAD", "")
    if "openblas" in before:
        return Preload({}, f"OpenBLAS preloaded: {before}")
    if library is None:
        return Preload({}, f"OpenBLAS is not installed; the worker is several times as fast with it: {_PACKAGE}")
    return Preload({"LD_PRELOAD": f"{library}:{before}" if before else library}, f"OpenBLAS preloaded: {library}")


def preload_here() -> Preload:
    """The same for this machine."""
    if sys.platform != "linux":
        return Preload({}, "")
    names = (distribution.name for distribution in metadata.distributions())
    return preload(sys.platform, _installed(), (name for name in names if name), os.environ)


def _installed() -> str | None:
    found = sorted(Path("/usr/lib").glob(_DEBIAN))
    return str(found[0]) if found else ctypes.util.find_library("openblas")
