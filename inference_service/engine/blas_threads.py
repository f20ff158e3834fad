"""NumPy's linear algebra of small matrices, on one thread.

Its BLAS's threads wait for each other: the eigenvectors of 128 x 128 cost 1 ms, and 230 with two threads and a busy
core.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from threadpoolctl import ThreadpoolController

assert np.__version__  # The controller sees the libraries that are loaded by now.
_THREADS = ThreadpoolController()
_LOCK = threading.Lock()
"""Two that limit at once would each restore what the other has set."""


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit the process's BLAS to one thread, for moments; not to be nested."""
    with _LOCK, _THREADS.limit(limits=1, user_api="blas"):
        yield
