"""NumPy's linear algebra of small matrices, on one thread.

Threads of its BLAS wait for each other longer than such matrices take: the eigenvectors of 128 x 128 cost 1 ms, and
230 ms with two threads on two cores of which one is busy.
"""

from contextlib import AbstractContextManager
from typing import Any

from threadpoolctl import ThreadpoolController

_THREADS = ThreadpoolController()


def one_blas_thread() -> AbstractContextManager[Any]:
    """Limit NumPy's BLAS to one thread. It limits all of the process, so it is for moments."""
    return _THREADS.limit(limits=1, user_api="blas")  # type: ignore[no-any-return]
