"""What is taken of a device's memory, and what is worth to be brought there, by what the backend says of it."""

from types import SimpleNamespace

import mlx.core as mx
import pytest

from inference_service.engine import device

GIB = 1 << 30
METAL = {"max_recommended_working_set_size": 20 * GIB, "memory_size": 32 * GIB}
CUDA = {"total_memory": 80 * GIB, "free_memory": 79 * GIB}


def pretend(monkeypatch: pytest.MonkeyPatch, kind: mx.DeviceType, info: dict[str, int]) -> None:
    monkeypatch.setattr(mx, "default_device", lambda: SimpleNamespace(type=kind))
    monkeypatch.setattr(mx, "device_info", lambda: info)


def test_metal(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, mx.DeviceType.gpu, METAL)
    assert not device.has_own_memory()
    assert device.usable_bytes() == 18 * GIB
    assert device.worth_restoring() == 16


def test_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, mx.DeviceType.gpu, CUDA)
    assert device.has_own_memory()
    assert device.device_bytes() == 80 * GIB
    assert device.usable_bytes() == 68 * GIB
    assert device.worth_restoring() == 128


def test_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, mx.DeviceType.cpu, {})
    assert not device.has_own_memory()
    assert device.usable_bytes() == device.device_bytes() // 2
    assert device.worth_restoring() == 16
