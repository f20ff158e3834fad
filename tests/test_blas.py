"""MLX's products by our own loops, and by NumPy's OpenBLAS."""

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest

from tests import blas

_PRODUCT = "import mlx.core as mx; mx.eval(mx.ones((8, 8)) @ mx.ones((8, 8))); print(open('/proc/self/maps').read())"
POINTER = ctypes.POINTER(ctypes.c_float)
NUMPYS = "libscipy_openblas64_"


@pytest.fixture
def by_openblas() -> Iterator[None]:
    with blas.openblas() as found:
        if not found:
            pytest.skip("needs Linux, a C compiler, and NumPy and MLX from wheels for CPUs")
        yield


def child(program: str = _PRODUCT, **environment: str) -> str:
    """The libraries of a process after a product. It has no need of NumPy."""
    command = [sys.executable, "-c", program]
    return subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, **environment}).stdout


def test_processes_that_are_started_have_it(by_openblas: None) -> None:
    assert NUMPYS in child()


def test_nobody_else_has_it() -> None:
    assert NUMPYS not in child()


def test_a_process_that_was_started_without_has_it_once_it_is_loaded(by_openblas: None) -> None:
    loads = "from tests import blas; blas.preload()\n"
    assert NUMPYS in child(f"{loads}with blas.openblas(): {_PRODUCT}", LD_PRELOAD="")


@pytest.mark.parametrize("transposed", [*product((False, True), repeat=2)])
@pytest.mark.parametrize("order", [101, 102], ids=["by rows", "by columns"])
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 0.0), (1.0, 1.0), (0.3, 0.7), (-2.0, 0.0)])
def test_without_openblas_all_bits_are_those_of_the_reference(
    alpha: float, beta: float, order: int, transposed: tuple[bool, bool]
) -> None:
    libraries = blas.products()
    if libraries is None:
        pytest.skip("needs Linux, a C compiler, and NumPy and MLX from wheels for CPUs")
    rng = np.random.default_rng(7)
    for m, n, k in product((1, 2, 6, 7, 23), (1, 8, 16, 17, 50), (1, 64, 131)):
        a, b, c = (rng.standard_normal(size, dtype=np.float32) for size in (m * k, k * n, m * n))
        rows = [(m, k)[:: -1 if transposed[0] else 1], (k, n)[:: -1 if transposed[1] else 1], (m, n)]
        steps = [shape[1 if order == 101 else 0] for shape in rows]
        found = []
        for library in libraries:
            into = c.copy()
            library.cblas_sgemm(
                *(order, 112 if transposed[0] else 111, 112 if transposed[1] else 111, m, n, k),
                *(ctypes.c_float(alpha), a.ctypes.data_as(POINTER), steps[0], b.ctypes.data_as(POINTER), steps[1]),
                *(ctypes.c_float(beta), into.ctypes.data_as(POINTER), steps[2]),
            )
            found.append(into)
        assert np.isfinite(found[0]).all()
        assert np.array_equal(found[0], found[1]), (m, n, k)
        assert not np.array_equal(found[0], c)
