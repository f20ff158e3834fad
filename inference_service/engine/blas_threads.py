"""NumPy's linear algebra of small matrices, on one thread: with two, eigenvectors of 128 x 128 took 230 ms, not 1."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from threadpoolctl import ThreadpoolController

assert np.__version__  # It sees libraries loaded by now.
_THREADS = ThreadpoolController()
_LOCK = threading.Lock()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """For moments; not to be nested."""
    with _LOCK, _THREADS.limit(limits=1, user_api="blas"):
        yield
