"""Copies between the host and a device: of exactly these words, on any thread, and an error is told."""

from concurrent.futures import ThreadPoolExecutor

import mlx.core as mx
import numpy as np
import pytest

from inference_service.engine import cuda_copies
from inference_service.engine.cuda_copies import Driver
from inference_service.engine.device import on_cuda
from inference_service.engine.paged import arena


def test_what_goes_to_a_device_comes_back_on_every_thread(kernels: None) -> None:
    driver, numbers = Driver(), np.random.default_rng(1)
    memory = mx.zeros((4, 1000), dtype=mx.uint32)
    mx.eval(memory)
    start = arena.address(memory)
    wanted = numbers.integers(0, 1 << 32, (4, 1000), dtype=np.uint32)

    def back(row: int) -> bool:
        found = np.zeros(1000, np.uint32)
        driver.to_host(start + 4000 * row, found)
        return np.array_equal(found, wanted[row])

    with ThreadPoolExecutor(3) as threads:
        for row in (2, 0, 3, 1):
            staged = driver.page_locked(1000)
            staged[:] = wanted[row]
            threads.submit(driver.to_device, staged, start + 4000 * row).result()
        assert all(threads.map(back, range(4)))


def test_page_locked_memory_is_kept_until_more_is_asked_for(kernels: None) -> None:
    driver = Driver()
    small, again = driver.page_locked(1000), driver.page_locked(400)
    assert again.ctypes.data == small.ctypes.data and (small.size, again.size) == (1000, 400)
    more = driver.page_locked(100_000)
    more[:] = 7
    assert driver.page_locked(1000).ctypes.data == more.ctypes.data


def test_the_drivers_errors_are_named(kernels: None) -> None:
    driver = Driver()
    with pytest.raises(RuntimeError, match="cuMemcpyDtoH_v2 of CUDA's driver failed: CUDA_ERROR_INVALID_VALUE"):
        driver.to_host(0, np.zeros(1, np.uint32))
    with pytest.raises(RuntimeError, match=r"cuMemAllocHost_v2 .* CUDA_ERROR_OUT_OF_MEMORY"):
        driver.page_locked(1 << 50)
    assert driver.page_locked(10).size == 10


@pytest.mark.skipif(on_cuda(), reason="a GPU's driver takes all of the host's memory")
def test_words_for_a_device_are_page_locked(kernels: None) -> None:
    memory = np.zeros(10, np.uint32)
    with pytest.raises(RuntimeError, match="INVALID_VALUE"):
        Driver().to_device(np.zeros(10, np.uint32), memory.ctypes.data)


def test_a_machine_without_the_driver_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_copies, "LIBRARY", "libcuda-of-nobody.so.1")
    with pytest.raises(OSError, match="libcuda-of-nobody"):
        Driver()
