"""What every benchmark writes: its figures as JSON, with the machine, the versions and all raw samples."""

import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
_PACKAGES = ("agentmem", "mlx", "mlx-lm", "grpcio", "numpy")


def environment() -> dict[str, str]:
    """Device, system and versions."""
    versions = {name: _version(name) for name in _PACKAGES}
    return {
        "device": _processor(),
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "commit": _commit(),
        "date": datetime.now(UTC).date().isoformat(),
        **versions,
    }


def summary(samples: Sequence[float]) -> dict[str, Any]:
    """Median and spread beside the samples themselves."""
    return {"median": statistics.median(samples), "min": min(samples), "max": max(samples), "samples": list(samples)}


def write(name: str, command: str, figures: dict[str, Any]) -> Path:
    """Write `benchmarks/results/<name>.json`."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"command": command, **environment(), "figures": figures}, indent=1) + "\n")
    return path


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return f"{names[0]}, {len(names)} cores" if names else platform.machine()


def _commit() -> str:
    """Of the checkout, or what AGENTMEM_COMMIT says where the code was copied without one."""
    if commit := os.environ.get("AGENTMEM_COMMIT"):
        return commit
    result = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return result.stdout.strip() or "unknown"
