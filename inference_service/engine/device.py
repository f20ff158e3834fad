"""What the backend says of its device."""

import os

import mlx.core as mx

_METAL_SHARE = 0.9
_CUDA_SHARE = 0.85
_SYSTEM_SHARE = 0.5


def usable_bytes() -> int:
    """Bytes that weights and KV may take together; the rest is for activations, and for other processes.

    Metal: of what it recommends as the working set. CUDA: of the device's memory. CPU: of the system's memory.
    """
    if mx.default_device().type == mx.DeviceType.cpu:
        return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * _SYSTEM_SHARE)
    info = mx.device_info()
    if working_set := info.get("max_recommended_working_set_size"):
        return int(int(working_set) * _METAL_SHARE)
    return int(int(info["total_memory"]) * _CUDA_SHARE)
