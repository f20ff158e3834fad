"""The device that MLX computes on, and its memory: on CUDA free of all processes, on Metal the recommended
working set.
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
    return mx.default_device().type == mx.DeviceType.cpu


def on_cuda() -> bool:
    return not on_cpu() and "total_memory" in _fixed()


def on_metal() -> bool:
    return not on_cpu() and not on_cuda()


def device_and_version() -> str:
    blas = ", OpenBLAS" if on_cpu() and has_openblas() else ""
    return f"{_fixed()['device_name']}{blas}; mlx {importlib.metadata.version('mlx')}"


@cache
def has_openblas() -> bool:
    if not hasattr(psutil.Process, "memory_maps"):
        return False
    files = (Path(each.path) for each in psutil.Process().memory_maps())
    return any(file.name.startswith("libopenblas") and not file.parent.name.endswith(".libs") for file in files)


def worth_restoring() -> int:
    """Return the tokens of KV from which restoring is faster than computing, by `agentmem bench ttft`: 16 to 64
    on two cores, 16 to 128 on an H200.
    """
    return _WORTH_UPLOADING if on_cuda() else _WORTH_RESTORING


def device_bytes() -> int:
    if on_cuda():
        return int(_fixed()["total_memory"])
    return host_memory.total_bytes()


def free_bytes() -> int:
    """Without MLX's cache. Any thread. Takes 0.1 ms, on a busy GPU 1 ms."""
    if (most := working_set()) is not None:
        return max(0, most - held_bytes())
    if on_cuda():
        return int(mx.device_info()["free_memory"])
    return host_memory.available_bytes()


def held_bytes() -> int:
    return int(mx.get_active_memory()) + int(mx.get_cache_memory())


def default_floor() -> int:
    return int(device_bytes() * _FLOOR_SHARE)


def share_bytes() -> int:
    if (most := working_set()) is not None:
        return int(most * _METAL_SHARE)
    return int(device_bytes() * (_CUDA_SHARE if on_cuda() else _SYSTEM_SHARE))


def obtainable_bytes(floor: int | None = None) -> int:
    return held_bytes() + free_bytes() - (default_floor() if floor is None else floor)


def usable_bytes(floor: int | None = None) -> int:
    return max(0, min(share_bytes(), obtainable_bytes(floor)))


def working_set() -> int | None:
    """None without Metal."""
    if on_cpu():
        return None
    recommended = _fixed().get("max_recommended_working_set_size")
    return int(recommended) if recommended else None


@cache
def _fixed() -> dict[str, Any]:
    """It waits for the driver with the interpreter held."""
    return dict(mx.device_info())
