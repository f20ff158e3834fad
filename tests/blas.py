"""OpenBLAS for MLX in tests of much arithmetic, as `agentmem up` preloads it where it is installed.

On Linux MLX's wheel for CPUs has the reference BLAS, which is fifteen times as slow. NumPy's wheel has an OpenBLAS,
under names of its own; a library of one function (blas.c) leads there, while it is told to. For tests that compare bits
the reference is better: what it makes of a row is the same in a product of any size, and on any machine.
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


@contextmanager
def openblas() -> Iterator[bool]:
    """Within the block products are by OpenBLAS; whether they are."""
    if (library := _loaded()) is None:
        yield False
        return
    library.use_openblas(1)
    os.environ[VARIABLE] = "1"
    try:
        yield True
    finally:
        del os.environ[VARIABLE]
        library.use_openblas(0)


@cache
def _loaded() -> ctypes.CDLL | None:
    """What is preloaded; in a process whose parent only has set LD_PRELOAD, it is loaded now."""
    found = [each for each in os.environ.get("LD_PRELOAD", "").split(":") if each.endswith(_NAME)]
    return ctypes.CDLL(found[0], ctypes.RTLD_GLOBAL) if found else None


def _built() -> Path | None:
    compiler = shutil.which("cc")
    openblas, own = (_of(*each) for each in (("numpy", "libscipy_openblas64_*.so"), ("mlx-cpu", "libblas-*.so*")))
    if sys.platform != "linux" or compiler is None or openblas is None or own is None:
        return None
    folder = Path(tempfile.mkdtemp(prefix="am-blas-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    named = {"OPENBLAS": openblas, "OWN": own, "VARIABLE": VARIABLE}
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", *(f'-D{n}="{of}"' for n, of in named.items())]
    subprocess.run([*command, "-o", folder / _NAME, Path(__file__).with_suffix(".c"), "-ldl"], check=True)
    return folder / _NAME


def _of(package: str, library: str) -> Path | None:
    """A library in a package's wheel."""
    try:
        files = metadata.files(package) or []
    except metadata.PackageNotFoundError:
        return None
    return next((Path(str(file.locate())) for file in files if file.match(library)), None)
