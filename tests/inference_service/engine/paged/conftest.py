"""The kinds of memory that a pool may be in; a device's own is emulated where there is none."""

import mlx.core as mx
import numpy as np
import pytest

from inference_service.engine.cuda_kernel import available
from inference_service.engine.paged import arena as arena_module
from inference_service.engine.paged.arena import Arena, DeviceArena, HostArena


def host_address(words: mx.array) -> int:
    return int(np.asarray(memoryview(words)).ctypes.data)  # type: ignore[arg-type]


@pytest.fixture(params=[HostArena, pytest.param(DeviceArena, marks=pytest.mark.slow)])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[Arena]:
    """The pool is in such memory."""
    if request.param is DeviceArena:
        request.getfixturevalue("device")
    monkeypatch.setattr(Arena, "of", staticmethod(request.param))
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def device(kernels: None, monkeypatch: pytest.MonkeyPatch) -> None:
    if not available():
        monkeypatch.setattr(arena_module, "address", host_address)
