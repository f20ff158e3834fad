"""The products of MLX on CPUs in tests: the reference's, only faster, and by OpenBLAS where a test asks for it.

On Linux MLX's wheel for CPUs has the reference BLAS, which takes ten times as long as it need. A small library (blas.c)
stands in its place. Its products have the same bits; so what they make of a row is the same in a product of any size
and on any machine, on which tests that compare bits rely. While it is told to, it leads to the OpenBLAS of NumPy's
wheel, under names of its own, for `agentmem up` preloads OpenBLAS where it is installed.
"""

import atexit
import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from pathlib import Path

VARIABLE = "AGENTMEM_TESTS_OPENBLAS"
"""Where it is set, products of a process that is started are by OpenBLAS."""
_NAME = "libmlx-products.so"


def preload() -> None:
    """Into this process, which must not have imported MLX yet, and those that it starts; nothing else changes.

    Where there is no compiler, or no such BLAS, tests only take longer.
    """
    if _loaded() or not (library := _built()):
        return
    before = os.environ.get("LD_PRELOAD", "")
    os.environ["LD_PRELOAD"] = f"{library}:{before}" if before else str(library)
    _loaded.cache_clear()
    _loaded()


def products() -> tuple[ctypes.CDLL, ctypes.CDLL] | None:
    """Return ours and MLX's library with cblas_sgemm; None where ours is not loaded."""
    library, replaced = _loaded(), _replaced()
    if library is None or replaced is None:
        return None
    return library, ctypes.CDLL(str(replaced), ctypes.RTLD_LOCAL)


@contextmanager
def openblas() -> Iterator[bool]:
    """Compute products by OpenBLAS within the block, which is given False where there is none. Blocks may be nested."""
    if (library := _loaded()) is None:
        yield False
        return
    outer = VARIABLE in os.environ
    library.use_openblas(1)
    os.environ[VARIABLE] = "1"
    try:
        yield True
    finally:
        if not outer:
            del os.environ[VARIABLE]
            library.use_openblas(0)


@cache
def _loaded() -> ctypes.CDLL | None:
    """Return the preloaded library; it is loaded now if only the parent has set LD_PRELOAD."""
    found = [each for each in os.environ.get("LD_PRELOAD", "").split(":") if each.endswith(_NAME)]
    return ctypes.CDLL(found[0], ctypes.RTLD_GLOBAL) if found else None


def _built() -> Path | None:
    compiler = shutil.which("cc")
    openblas = _of("numpy", "libscipy_openblas64_*.so")
    if sys.platform != "linux" or compiler is None or openblas is None or _replaced() is None:
        return None
    folder = Path(tempfile.mkdtemp(prefix="am-blas-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    named = [f'-DOPENBLAS="{openblas}"', f'-DVARIABLE="{VARIABLE}"']
    command = [compiler, "-shared", "-fPIC", "-O3", "-march=native", "-ffp-contract=off", "-Wall", "-Werror", *named]
    subprocess.run([*command, "-o", folder / _NAME, Path(__file__).with_suffix(".c"), "-ldl"], check=True)
    return folder / _NAME


def _replaced() -> Path | None:
    return _of("mlx-cpu", "libblas-*.so*")


def _of(package: str, library: str) -> Path | None:
    try:
        files = metadata.files(package) or []
    except metadata.PackageNotFoundError:
        return None
    return next((Path(str(file.locate())) for file in files if file.match(library)), None)
