"""Small models compute with OpenBLAS, as a worker does where it is installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import blas


@pytest.fixture(scope="package", autouse=True)
def by_openblas() -> Iterator[None]:
    with blas.openblas():
        yield
