"""The GPUs of this machine, and the installed builds of MLX. Imports MLX only to see whether that works."""

import importlib
import os
import platform
import re
import sys
from importlib import metadata
from pathlib import Path

from agentmem.process.checkup import Finding, Findings, ok, problem

_NVIDIA = Path("/proc/driver/nvidia/gpus")
_ADVICE = {
    "metal": "use a Python for arm64 (`python3 -c 'import platform; print(platform.machine())'`), then make setup",
    "cuda": "install MLX's CUDA build: make setup MLX=cuda13, or pip install 'agentmem[cuda13]'",
    "cpu instead of cuda": "install MLX's CPU build: make setup MLX=cpu, or pip install 'agentmem[cpu]'",
    "cpu": "install MLX: make setup, or pip install 'agentmem[cpu]'",
}


def mlx() -> Findings:
    """Check that MLX can be imported. A build without its GPU's libraries cannot."""
    return [import_problem() or ok(f"{metadata.version('mlx')} ({', '.join(installed()) or 'no build'})")]


def import_problem() -> Finding | None:
    """Return what is wrong where MLX cannot be imported: it is not installed, or its build misses libraries."""
    try:
        importlib.import_module("mlx.core")
        importlib.import_module("mlx_lm")
    except (ImportError, OSError, RuntimeError) as error:
        return problem(f"MLX cannot be imported: {error}", advice())
    return None


def installed() -> list[str]:
    """Return the installed builds of MLX by their distributions: "mlx-cpu", "mlx-cuda-13", "mlx-metal"."""
    names = {str(found.metadata["Name"] or "").lower().replace("_", "-") for found in metadata.distributions()}
    return sorted(name for name in names if name.startswith(("mlx-cpu", "mlx-cuda", "mlx-metal")))


def nvidia_gpus(proc: Path = _NVIDIA, dev: Path = Path("/dev")) -> int:
    """Return how many NVIDIA GPUs the driver knows; in containers, how many devices were passed in."""
    if proc.is_dir():
        return len(os.listdir(proc))
    return sum(bool(re.fullmatch(r"nvidia\d+", name)) for name in os.listdir(dev)) if dev.is_dir() else 0


def is_apple_silicon() -> bool:
    """Return whether this is a Mac with Metal as MLX needs it; under Rosetta Python takes it for an Intel one."""
    return sys.platform == "darwin" and (platform.machine() == "arm64" or "ARM64" in os.uname().version)


def advice() -> str:
    """Return how to get the build of MLX that this machine needs."""
    cuda = any(build.startswith("mlx-cuda") for build in installed())
    cpu = "cpu instead of cuda" if cuda else "cpu"
    return _ADVICE["metal" if is_apple_silicon() else "cuda" if nvidia_gpus() else cpu]
