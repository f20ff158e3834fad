"""Results of benchmarks: figures with all samples, their tables, the machine and the versions, as JSON."""

import functools
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import mlx.core as mx

from agentmem.distribution import version
from benchmarks.tables import Claim, Table, claims_table, show

RESULTS = Path(__file__).parent / "results"
_WIDTH = 118
_PACKAGES = ("mlx", "mlx-lm", "grpcio", "numpy")


@functools.cache
def environment() -> dict[str, str]:
    versions = {"agentmem": version(), **{name: _version(name) for name in _PACKAGES}}
    return {
        "device": _accelerator() or _processor(),
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "commit": _commit(),
        "date": datetime.now(UTC).date().isoformat(),
        **versions,
    }


def summary(samples: Sequence[float]) -> dict[str, Any]:
    return {"median": statistics.median(samples), "min": min(samples), "max": max(samples), "samples": list(samples)}


def percentile(samples: Sequence[float], percent: int) -> float:
    if len(samples) == 1:
        return samples[0]
    return statistics.quantiles(samples, n=100, method="inclusive")[percent - 1]


def backend() -> str:
    return "gpu" if mx.default_device().type == mx.DeviceType.gpu else "cpu"


def write(name: str, figures: dict[str, Any], tables: Sequence[Table] | None = None) -> Path:
    """Write `results/NAME.json`, `.unfinished` without `tables`. Raises SystemExit for a relative path."""
    if Path(name).name != name and not Path(name).is_absolute():
        raise SystemExit(f"--output {name}: give a name, for {RESULTS}, or an absolute path")
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    command = " ".join(sys.argv)
    benchmark = command.removeprefix("agentmem bench ").partition(" ")[0]
    found: dict[str, Any] = {"benchmark": benchmark, "command": command, **environment()}
    found |= {"tables": [asdict(table) for table in tables or ()], "figures": figures}
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.write_text(dump(found) + "\n")
    return unfinished if tables is None else unfinished.replace(path)


def conclude(name: str, figures: dict[str, Any], tables: Sequence[Table], claims: Sequence[Claim] = ()) -> int:
    show([*tables, claims_table(claims)] if claims else tables)
    print(f"written to {write(name, figures, tables)}")
    return 0 if all(claim.met for claim in claims) else 1


def dump(value: Any, indent: str = "") -> str:
    """JSON with floats of four digits, from 1000 on of one place."""
    if isinstance(value, float):
        return json.dumps(round(value, 1) if abs(value) >= 1000 else float(f"{value:.4g}"))
    if not isinstance(value, dict | list | tuple):
        return json.dumps(value, ensure_ascii=False)
    inner, (start, end) = indent + " ", "{}" if isinstance(value, dict) else "[]"
    if isinstance(value, dict):
        parts = [f"{json.dumps(str(key), ensure_ascii=False)}: {dump(each, inner)}" for key, each in value.items()]
    else:
        parts = [dump(each, inner) for each in value]
    line, items = ", ".join(parts), value.values() if isinstance(value, dict) else value
    flat = not any(isinstance(each, dict | list | tuple) for each in items)
    if flat or ("\n" not in line and len(indent) + len(line) < _WIDTH):
        return f"{start}{line}{end}"
    return f"{start}\n{inner}" + f",\n{inner}".join(parts) + f"\n{indent}{end}"


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


def _accelerator() -> str:
    return f"{mx.device_info()['device_name']}, with {_processor()}" if backend() == "gpu" else ""


def _commit() -> str:
    if commit := os.environ.get("AGENTMEM_COMMIT"):
        return commit
    if not (commit := _git("rev-parse", "--short", "HEAD")):
        return "unknown"
    written = (RESULTS.name, "RESULTS.md")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ":/", *(f":!{name}" for name in written))
    return f"{commit}-dirty" if changed else commit


def _git(*asked: str) -> str:
    place = Path(__file__).parent
    return subprocess.run(["git", *asked], cwd=place, capture_output=True, text=True, check=False).stdout.strip()
