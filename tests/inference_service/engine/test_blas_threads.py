"""NumPy's BLAS has one thread where that is asked for, and as many as before afterwards, whoever else asked."""

import threading

from threadpoolctl import threadpool_info, threadpool_limits

from inference_service.engine.blas_threads import one_blas_thread

_WAIT_SECONDS = 10


def threads() -> list[int]:
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


def test_two_at_once_leave_as_many_as_before() -> None:
    came, done = threading.Event(), threading.Event()

    def second() -> None:
        with one_blas_thread():
            came.set()
            assert done.wait(_WAIT_SECONDS)

    with threadpool_limits(limits=2, user_api="blas"):
        before = threads()
        other = threading.Thread(target=second)
        with one_blas_thread():
            assert set(threads()) == {1}
            other.start()
            assert not came.wait(0.1)
        assert came.wait(_WAIT_SECONDS)
        done.set()
        other.join()
        assert threads() == before
