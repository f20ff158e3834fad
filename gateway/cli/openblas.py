"""Whether the worker is started with OpenBLAS.

On Linux without a GPU MLX calls the BLAS that its libblas.so.3 resolves to, which is the reference one: 7 GFLOP/s on
two cores, where OpenBLAS reaches 222. Preloading it into the worker needs no other change.
"""

import ctypes.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

_DEBIAN = "*/openblas-pthread/libopenblas.so.0"
_INSTALL = "apt-get install libopenblas0-pthread"


_PROBE = "import ctypes; print(ctypes.CDLL(None).openblas_get_parallel())"
"""Says whether the OpenBLAS in its process computes on one core (0) or on several; ends with 1 where there is none."""
_PROBE_SECONDS = 30.0


class Preload(NamedTuple):
    """Variables that the worker gets beyond ours, a line for the user, and what to do, where that is not all well.

    Each may be empty.
    """

    environment: dict[str, str]
    message: str
    advice: str = ""


def preload(
    platform: str,
    library: str | None,
    distributions: Iterable[str],
    environment: Mapping[str, str],
    cores: Callable[[str], int | None],
) -> Preload:
    """What to do with `library` on `platform`, given the names of the installed distributions.

    `cores` starts a process with this LD_PRELOAD and says what its OpenBLAS answered, None where it has none.
    """
    if platform != "linux" or any(name.lower().replace("_", "-").startswith("mlx-cuda") for name in distributions):
        return Preload({}, "")
    before = environment.get("LD_PRELOAD", "")
    if "openblas" in before and (found := cores(before)) is not None:
        return _loaded({}, before, found)
    if library is None:
        return Preload({}, "OpenBLAS is not installed; the worker is several times as fast with it", _INSTALL)
    together = f"{library}:{before}" if before else library
    if (found := cores(together)) is None:
        broken = f"OpenBLAS cannot be loaded from {library}; the worker is several times as fast with it"
        return Preload({}, broken, _INSTALL)
    return _loaded({"LD_PRELOAD": together}, library, found)


def _loaded(environment: dict[str, str], library: str, cores: int) -> Preload:
    if cores:
        return Preload(environment, f"OpenBLAS preloaded: {library}")
    return Preload(environment, f"OpenBLAS preloaded: {library}, which is a build that computes on one core", _INSTALL)


def preload_here() -> Preload:
    """The same for this machine."""
    if sys.platform != "linux":
        return Preload({}, "")
    names = (distribution.name for distribution in metadata.distributions())
    return preload(sys.platform, _installed(), (name for name in names if name), os.environ, answered)


@cache
def answered(preloaded: str) -> int | None:
    """What the OpenBLAS of a process with this LD_PRELOAD answers; the loader ignores what it cannot load."""
    command = [sys.executable, "-I", "-S", "-c", _PROBE]
    environment = {**os.environ, "LD_PRELOAD": preloaded}
    try:
        told = subprocess.run(command, capture_output=True, env=environment, timeout=_PROBE_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return int(told.stdout)


def _installed() -> str | None:
    found = sorted(Path("/usr/lib").glob(_DEBIAN))
    return str(found[0]) if found else ctypes.util.find_library("openblas")
