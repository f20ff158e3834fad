"""What MLX computes on, and how fast it multiplies there."""

import sys
import time
from pathlib import Path

import mlx.core as mx

from agentmem.checkup import Fact, Finding, Findings, ok, problem, warning
from agentmem.sizes import byte_size
from inference_service.doctor import hardware
from inference_service.engine.device import device_bytes, usable_bytes

_CPU_WIDTH, _GPU_WIDTH = 512, 4096
_MOST_SECONDS = 0.5
_SLOW_CPU = 20e9
"""Operations per second: the reference BLAS reaches 7e9 on two cores, OpenBLAS 222e9."""

_INSTALL = "apt-get install libopenblas0-pthread; `agentmem up` then preloads it into the worker"


def device() -> Findings:
    """The device, and whether there is a better one."""
    name, gpus = "backend", hardware.nvidia_gpus()
    info = mx.device_info()
    on_cpu = mx.default_device().type == mx.DeviceType.cpu
    backend = "CPU" if on_cpu else "Metal" if mx.metal.is_available() else "CUDA"
    about = f"{backend}: {info.get('device_name', info.get('architecture', 'unknown'))}"
    memory = f"models may take {byte_size(usable_bytes())} of {byte_size(device_bytes())}"
    facts: dict[str, Fact] = {
        "backend": backend.lower(),
        "device_bytes": device_bytes(),
        "usable_bytes": usable_bytes(),
    }
    if on_cpu and gpus:
        there = f"{about}, although this machine has {gpus} NVIDIA GPU{'s' if gpus > 1 else ''}"
        return [warning(name, there, hardware.advice(hardware.installed(), gpus, apple=False), facts=facts)]
    if on_cpu and hardware.is_apple_silicon():
        return [problem(name, f"{about}, although this Mac has Metal", hardware.advice([], 0, apple=True), facts=facts)]
    return [ok(name, f"{about}; {memory}", facts=facts)]


def products() -> Findings:
    """A float32 product of matrices, again and again for half a second; the first is for warming up."""
    on_cpu = mx.default_device().type == mx.DeviceType.cpu
    width = _CPU_WIDTH if on_cpu else _GPU_WIDTH
    a, b = (mx.random.normal((width, width)) for _ in range(2))
    mx.eval(a, b)
    mx.eval(a @ b)
    began, done = time.monotonic(), 0
    while (took := time.monotonic() - began) < _MOST_SECONDS:
        mx.eval(a @ b)
        done += 1
    return [
        judged(2.0 * width**3 * done / took, on_cpu=on_cpu, linux=sys.platform == "linux", openblas=_has_openblas())
    ]


def judged(flops: float, *, on_cpu: bool, linux: bool, openblas: bool) -> Finding:
    """What so many operations per second mean; `openblas` says that it is in this process."""
    name, facts = "matrix products", {"flops": round(flops), "openblas": openblas}
    found = f"{flops / 1e9:,.0f} GFLOP/s in float32"
    if not on_cpu or not linux:
        return ok(name, found, facts=facts)
    if openblas:
        if flops < _SLOW_CPU:
            slow = f"{found} with OpenBLAS, which is slow"
            return warning(name, slow, "look what else runs on these cores; expect long prefills", facts=facts)
        return ok(name, f"{found}, with OpenBLAS preloaded", facts=facts)
    if flops < _SLOW_CPU:
        return warning(name, f"{found}: the worker is several times as fast with OpenBLAS", _INSTALL, facts=facts)
    return ok(name, f"{found}, without OpenBLAS", _INSTALL, facts=facts)


def _has_openblas() -> bool:
    """Whether OpenBLAS is loaded into this process; NumPy brings one for itself alone. Linux."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    files = (Path(line.split()[-1]) for line in maps.splitlines())
    return any(file.name.startswith("libopenblas") and not file.parent.name.endswith(".libs") for file in files)
