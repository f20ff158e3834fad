"""What the backend says of its device."""

import os

import mlx.core as mx

_METAL_SHARE = 0.9
_CUDA_SHARE = 0.85
_SYSTEM_SHARE = 0.5
_WORTH_RESTORING = 16
_WORTH_UPLOADING = 128


def usable_bytes() -> int:
    """Bytes that weights, activations and KV of all models may take together; the rest is for other processes.

    Metal: of what it recommends as the working set. CUDA: of the device's memory. CPU: of the system's memory.
    """
    if mx.default_device().type == mx.DeviceType.cpu:
        return int(device_bytes() * _SYSTEM_SHARE)
    info = mx.device_info()
    if working_set := info.get("max_recommended_working_set_size"):
        return int(int(working_set) * _METAL_SHARE)
    return int(device_bytes() * _CUDA_SHARE)


def has_own_memory() -> bool:
    """Whether it is a GPU whose memory is not the system's: a CUDA one."""
    return mx.default_device().type != mx.DeviceType.cpu and "total_memory" in mx.device_info()


def worth_restoring() -> int:
    """Tokens of KV from which on to restore them takes less time than to compute them.

    From `agentmem bench break-even`: 16 to 64 for the demo model on two cores, and 16 to 128 for Llama 3.1 8B's
    geometry on an H200, where files are copied to memory of the GPU's own: there the most is taken, because a few
    tokens are computed as fast as they are copied. Metal was not measured; it copies nothing.
    """
    return _WORTH_UPLOADING if has_own_memory() else _WORTH_RESTORING


def device_bytes() -> int:
    """What the device has: a GPU of its own its memory, all others the system's."""
    if has_own_memory():
        return int(mx.device_info()["total_memory"])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
