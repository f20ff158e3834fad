"""GPUs that are there, and builds of MLX that are installed. Imports MLX only to see whether that works."""

import importlib
import os
import platform
import re
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from agentmem.checkup import Finding, problem

_NVIDIA = Path("/proc/driver/nvidia/gpus")
_DEVICE = re.compile(r"nvidia\d+")


def installed() -> list[str]:
    """The builds of MLX that are installed, by their distributions: "mlx-cpu", "mlx-cuda-13", "mlx-metal"."""
    names = {str(found.metadata["Name"] or "").lower().replace("_", "-") for found in metadata.distributions()}
    return sorted(name for name in names if name.startswith(("mlx-cpu", "mlx-cuda", "mlx-metal"))) or ["no build"]


def import_problem() -> Finding | None:
    """What is wrong, where MLX cannot be imported: it is not there, or its build wants libraries that are not."""
    try:
        importlib.import_module("mlx.core")
        importlib.import_module("mlx_lm")
    except (ImportError, OSError, RuntimeError) as error:
        how = advice(installed(), nvidia_gpus(), apple=is_apple_silicon())
        return problem("MLX", f"MLX cannot be imported: {error}", how)
    return None


def nvidia_gpus(proc: Path = _NVIDIA, dev: Path = Path("/dev")) -> int:
    """How many NVIDIA GPUs the driver knows; in containers, how many devices were handed in."""
    if proc.is_dir():
        return len(os.listdir(proc))
    return sum(1 for name in os.listdir(dev) if _DEVICE.fullmatch(name)) if dev.is_dir() else 0


def is_apple_silicon() -> bool:
    """Whether this is a Mac with Metal as MLX needs it; under Rosetta Python takes it for an Intel one."""
    return sys.platform == "darwin" and (platform.machine() == "arm64" or "ARM64" in os.uname().version)


def advice(builds: Sequence[str], gpus: int, *, apple: bool) -> str:
    """How to get the build of MLX that a machine wants that has so many NVIDIA GPUs, or is an `apple` silicon one."""
    if apple:
        return "use a Python for arm64 (`python3 -c 'import platform; print(platform.machine())'`), then make setup"
    if gpus:
        return "install MLX's CUDA build: make setup MLX=cuda13, or pip install 'agentmem[cuda13]'"
    if any(build.startswith("mlx-cuda") for build in builds):
        return "install MLX's CPU build: make setup MLX=cpu, or pip install 'agentmem[cpu]'"
    return "install MLX: make setup, or pip install 'agentmem[cpu]'"
