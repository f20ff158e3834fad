"""A backend's figures decide how much of a device's memory is taken, and what is worth bringing there."""

from types import SimpleNamespace

import mlx.core as mx
import pytest

from inference_service.engine import device, host_memory

GIB = 1 << 30
METAL = {"max_recommended_working_set_size": 20 * GIB, "memory_size": 32 * GIB}
CUDA = {"total_memory": 80 * GIB, "free_memory": 79 * GIB}


def pretend(monkeypatch: pytest.MonkeyPatch, kind: mx.DeviceType, info: dict[str, int], held: int = 0) -> None:
    monkeypatch.setattr(mx, "default_device", lambda: SimpleNamespace(type=kind))
    monkeypatch.setattr(mx, "device_info", lambda: info)
    monkeypatch.setattr(device, "_fixed", lambda: info)
    monkeypatch.setattr(device, "held_bytes", lambda: held)


def test_metal(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, mx.DeviceType.gpu, METAL)
    assert not device.on_cuda()
    assert device.usable_bytes() == 18 * GIB
    assert device.worth_restoring() == 16


def test_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, mx.DeviceType.gpu, CUDA)
    assert device.on_cuda()
    assert device.device_bytes() == 80 * GIB
    assert device.usable_bytes() == 68 * GIB
    assert device.worth_restoring() == 128


def test_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, mx.DeviceType.cpu, {})
    assert not device.on_cuda()
    assert device.share_bytes() == device.device_bytes() // 2
    assert device.worth_restoring() == 16


def test_others_have_taken_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, mx.DeviceType.gpu, {**CUDA, "free_memory": 30 * GIB}, held=10 * GIB)
    assert device.usable_bytes() == 36 * GIB, "a twentieth of the device is the floor"
    assert device.usable_bytes(floor=0) == 40 * GIB
    assert device.usable_bytes(floor=50 * GIB) == 0
    assert device.obtainable_bytes(floor=50 * GIB) == -10 * GIB


def test_the_driver_is_asked_once_for_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes 1 ms of a GPU's driver, with the interpreter held, for each turn that is admitted."""
    asked: list[dict[str, int]] = []

    def info() -> dict[str, int]:
        asked.append(CUDA)
        return CUDA

    pretend(monkeypatch, mx.DeviceType.gpu, CUDA)
    monkeypatch.setattr(mx, "device_info", info)
    assert device.obtainable_bytes() == 75 * GIB
    assert len(asked) == 1


def test_on_metal_the_working_set_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, mx.DeviceType.gpu, METAL, held=5 * GIB)
    monkeypatch.setattr(host_memory, "available_bytes", lambda: GIB)
    assert device.free_bytes() == 15 * GIB


def test_on_a_cpu_the_host_does(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, mx.DeviceType.cpu, {}, held=GIB)
    monkeypatch.setattr(host_memory, "available_bytes", lambda: 3 * GIB)
    monkeypatch.setattr(host_memory, "total_bytes", lambda: 40 * GIB)
    assert device.usable_bytes() == 2 * GIB
