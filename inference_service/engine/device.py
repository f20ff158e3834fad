"""The device that MLX computes on: its name, its total and free memory, and the least KV worth restoring there.

A GPU's figures are MLX's: on CUDA `free_memory`, which counts all processes (by NVML if installed), on Metal the
recommended working set. A CPU's are the system's.
"""

import importlib.metadata
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import psutil

from inference_service.engine import host_memory

_METAL_SHARE = 0.9
_CUDA_SHARE = 0.85
_SYSTEM_SHARE = 0.5
_FLOOR_SHARE = 0.05
_WORTH_RESTORING = 16
_WORTH_UPLOADING = 128


def on_cpu() -> bool:
    """Return whether MLX computes on the CPU."""
    return mx.default_device().type == mx.DeviceType.cpu


def device_and_version() -> str:
    """Return the device, with OpenBLAS or not, and MLX's version: the key of remembered measurements."""
    blas = ", OpenBLAS" if on_cpu() and has_openblas() else ""
    return f"{_fixed()['device_name']}{blas}; mlx {importlib.metadata.version('mlx')}"


@cache
def has_openblas() -> bool:
    """Return whether this process has loaded an OpenBLAS besides NumPy's own. False if that cannot be looked up."""
    if not hasattr(psutil.Process, "memory_maps"):
        return False
    files = (Path(each.path) for each in psutil.Process().memory_maps())
    return any(file.name.startswith("libopenblas") and not file.parent.name.endswith(".libs") for file in files)


def has_own_memory() -> bool:
    """Return whether the device is a GPU with its own memory: a CUDA one."""
    return not on_cpu() and "total_memory" in _fixed()


def worth_restoring() -> int:
    """Return the tokens of KV from which restoring is faster than computing.

    From `agentmem bench break-even`: 16 to 64 for the demo model on two cores, and 16 to 128 for Llama 3.1 8B's
    geometry on an H200, where files are copied to the GPU's memory. There the upper end is taken, because a few tokens
    are computed as fast as copied. Metal was not measured; it copies nothing.
    """
    return _WORTH_UPLOADING if has_own_memory() else _WORTH_RESTORING


def device_bytes() -> int:
    """Return the bytes of the device's memory: a CUDA GPU's own, else the system's, or the limit of this process."""
    if has_own_memory():
        return int(_fixed()["total_memory"])
    return host_memory.total_bytes()


def free_bytes() -> int:
    """Return the bytes of the device's memory that are free now. MLX's cache of freed buffers counts as taken.

    Any thread. Takes about 0.1 ms, on a busy GPU 1 ms: call it when memory is promised or taken, not in every step.
    """
    if (working_set := _working_set()) is not None:
        return max(0, working_set - held_bytes())
    if has_own_memory():
        return int(mx.device_info()["free_memory"])
    return host_memory.available_bytes()


def held_bytes() -> int:
    """Return the bytes that MLX has taken: arrays, and its cache of freed buffers."""
    return int(mx.get_active_memory()) + int(mx.get_cache_memory())


def default_floor() -> int:
    """Return the bytes that stay free by default, for other processes and for the backend itself."""
    return int(device_bytes() * _FLOOR_SHARE)


def share_bytes() -> int:
    """Return the bytes that weights, activations and KV of all models may take together, whatever other processes have.

    A share of the recommended working set (Metal), of the device's memory (CUDA), or of the system's (CPU).
    """
    if (working_set := _working_set()) is not None:
        return int(working_set * _METAL_SHARE)
    return int(device_bytes() * (_CUDA_SHARE if has_own_memory() else _SYSTEM_SHARE))


def obtainable_bytes(floor: int | None = None) -> int:
    """Return the bytes that MLX could have now: those it holds, and those free above the floor. May be negative."""
    return held_bytes() + free_bytes() - (default_floor() if floor is None else floor)


def usable_bytes(floor: int | None = None) -> int:
    """Return the bytes that models may take now: their share of the device, or less if other processes leave less."""
    return max(0, min(share_bytes(), obtainable_bytes(floor)))


def _working_set() -> int | None:
    if on_cpu():
        return None
    working_set = _fixed().get("max_recommended_working_set_size")
    return int(working_set) if working_set else None


@cache
def _fixed() -> dict[str, Any]:
    """Return MLX's description of the device, asked once: asking waits for the driver with the interpreter held."""
    return dict(mx.device_info())
