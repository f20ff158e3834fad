"""The machine, without its owner's names. Fields that a system does not have are left out."""

import os
import platform
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import psutil

from agentmem.distribution import version

_SECONDS: Final = 10.0
_PACKAGES: Final = ("mlx", "mlx-metal", "mlx-lm", "transformers", "grpcio", "numpy")
_CPUINFO: Final = Path("/proc/cpuinfo")


def machine() -> dict[str, Any]:
    found = {
        "chip": chip(),
        "cores": os.cpu_count(),
        **(_mac() if sys.platform == "darwin" else {}),
        "memory_bytes": psutil.virtual_memory().total,
        "system": system(),
        "power": power(),
        "load_before": psutil.getloadavg()[0],
    }
    return {name: value for name, value in found.items() if value not in (None, "")}


def versions() -> dict[str, str]:
    found = {"agentmem": version(), "python": python()}
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def chip() -> str:
    if sys.platform == "darwin":
        return _sysctl("machdep.cpu.brand_string") or "a Mac of unknown chip"
    with suppress(OSError):
        if named := re.search(r"^model name\s*: (.+)$", _CPUINFO.read_text(encoding="utf-8"), re.MULTILINE):
            return named[1].strip()
    return platform.processor() or platform.machine()


def system() -> str:
    if sys.platform == "darwin":
        return f"macOS {platform.mac_ver()[0]}"
    with suppress(OSError):
        return f"{platform.freedesktop_os_release()['PRETTY_NAME']}, {platform.system()} {platform.release()}"
    return f"{platform.system()} {platform.release()}"


def python() -> str:
    """Return "3.11.9, arm64"; an x86 Python on a Mac runs under Rosetta, and computes without the GPU."""
    translated = sys.platform == "darwin" and _sysctl("sysctl.proc_translated") == "1"
    return f"{platform.python_version()}, {platform.machine()}{' under Rosetta' if translated else ''}"


def power() -> str:
    battery = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
    saves = sys.platform == "darwin" and re.search(r"^\s*lowpowermode\s+1", _told("pmset", "-g"), re.MULTILINE)
    low = ", low power mode" if saves else ""
    if battery is None:
        return f"no battery{low}"
    return f"{'power adapter' if battery.power_plugged else f'battery at {battery.percent:.0f} %'}{low}"


def memory() -> dict[str, int]:
    """Return the system's memory now, in bytes; macOS also knows what is wired."""
    found, swap = psutil.virtual_memory(), psutil.swap_memory()
    wired = {name: value for name, value in found._asdict().items() if name == "wired"}
    return {"available": found.available, "swap_used": swap.used, **wired}


def _mac() -> dict[str, Any]:
    gpu = re.search(r'"gpu-core-count"\s*=\s*(\d+)', _told("ioreg", "-rc", "AGXAccelerator", "-d", "1"))
    return {
        "mac": _sysctl("hw.model"),
        "performance_cores": _number(_sysctl("hw.perflevel0.physicalcpu")),
        "efficiency_cores": _number(_sysctl("hw.perflevel1.physicalcpu")),
        "gpu_cores": _number(gpu[1]) if gpu else None,
        "wired_limit_mb": _number(_sysctl("iogpu.wired_limit_mb")),
    }


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _sysctl(name: str) -> str:
    return _told("sysctl", "-n", name)


def _told(*command: str) -> str:
    """Return what a program of the system says, or ""."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
