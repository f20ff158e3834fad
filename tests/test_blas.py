"""MLX's products by NumPy's OpenBLAS."""

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import product

import mlx.core as mx
import numpy as np
import pytest

from tests import blas

_PRODUCT = "import mlx.core as mx; mx.eval(mx.ones((8, 8)) @ mx.ones((8, 8))); print(open('/proc/self/maps').read())"
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
def test_products_are_right(transposed: tuple[bool, bool], by_openblas: None) -> None:
    rng = np.random.default_rng(7)
    for rows, inner, columns in ((1, 64, 40), (5, 33, 1), (130, 70, 260)):
        shapes = [
            shape[::-1] if turned else shape
            for shape, turned in zip(((rows, inner), (inner, columns)), transposed, strict=True)
        ]
        given = [rng.standard_normal((3, *shape), dtype=np.float32) for shape in shapes]
        a, b = (mx.array(each) for each in given)
        a, b = (each.swapaxes(-1, -2) if turned else each for each, turned in zip((a, b), transposed, strict=True))
        c = np.ones((3, rows, columns), dtype=np.float32)
        expected = np.array(a, dtype=np.float64) @ np.array(b, dtype=np.float64)
        assert np.allclose(a @ b, expected, atol=1e-4)
        assert np.allclose(mx.addmm(mx.array(c), a, b, alpha=2.0, beta=3.0), 2 * expected + 3, atol=1e-4)
