"""Plots of those benchmarks that are one module each and long enough without them. Pure.

`benchmarks.restart` has its own from here, under the name `plots`.
"""

from collections.abc import Mapping
from typing import Any

from benchmarks.plots import Plot, point


def of_restart(figures: Mapping[str, Any]) -> list[Plot]:
    """When what is there again, with memory and computed anew."""
    asked = figures["asked"]
    moments = {
        "ready": "the gateway is ready",
        "first_answered": "the first agent's first token",
        "all_answered": f"all {asked['agents']} agents have answered",
    }
    series = {
        way: [point(label, found[name]) for name, label in moments.items()] for way, found in figures["ways"].items()
    }
    title = f"{asked['agents']} agents of {asked['length']:,} tokens after a SIGKILL of everything ({asked['model']})"
    return [Plot("moments", title, "moment", "time from process start (s)", series)]
