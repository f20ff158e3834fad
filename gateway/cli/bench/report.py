"""Measured figures, as JSON and as a table in Markdown."""

import os
import platform
import statistics
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from agentmem.distribution import version
from agentmem.sizes import byte_size
from gateway.cli.bench.measuring import SAMPLES, Measured

_MEMORY: Final = {"cold": "all of it is computed", "warm": "read from disk", "hot": "in memory"}


def figures(measured: Measured, *, local: bool) -> dict[str, Any]:
    raw = measured.model.raw
    here = f"{os.cpu_count()} cores; {platform.system()} {platform.machine()}, Python {platform.python_version()}"
    return {
        "model": measured.model.name,
        "dtype": raw.dtype,
        "kv_bits": raw.kv_bits,
        "weight_bytes": raw.weight_bytes,
        "device": "; ".join(filter(None, (raw.device, here if local else ""))),
        "agentmem": version(),
        "date": datetime.now(UTC).date().isoformat(),
        "tokens": measured.tokens,
        "ttft_seconds": {name: _summary(samples) for name, samples in measured.ttft.items()},
        "tokens_per_second": {str(agents): _summary(samples) for agents, samples in measured.speed.items()},
    }


def _summary(samples: Sequence[float]) -> dict[str, Any]:
    return {"median": statistics.median(samples), "min": min(samples), "max": max(samples), "samples": list(samples)}


def markdown(found: dict[str, Any]) -> str:
    ttft = found["ttft_seconds"]
    rows = [
        (
            f"TTFT, {name}: {_MEMORY[name]}",
            _spread(each, 1000, " ms"),
            f"{ttft['cold']['median'] / each['median']:.1f}x",
        )
        for name, each in ttft.items()
    ]
    rows += [
        (f"tokens/s, {agents} agent{'s at once' if agents != '1' else ''}", _spread(each), "")
        for agents, each in found["tokens_per_second"].items()
    ]
    about = f"{found['model']}, {found['dtype']}, KV in {found['kv_bits']} bits, {byte_size(found['weight_bytes'])}"
    return "\n".join(
        [
            f"**Agentmem {found['agentmem']}, {found['date']}**: {about}",
            "",
            found["device"],
            "",
            f"| agents of {found['tokens']:,} tokens | median of {SAMPLES} (range) | speed-up |",
            "|---|---:|---:|",
            *(f"| {' | '.join(row)} |" for row in rows),
        ]
    )


def _spread(found: dict[str, Any], times: float = 1, unit: str = "") -> str:
    median, low, high = (found[name] * times for name in ("median", "min", "max"))
    digits = 0 if median >= 10 else 1
    return f"{median:,.{digits}f}{unit} ({low:,.{digits}f}–{high:,.{digits}f})"
