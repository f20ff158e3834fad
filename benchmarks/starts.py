"""Where the time of a start of `agentmem up` goes, by what its services log as JSON. Pure, but for reading the log."""

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

PARTS = {
    "up": "agentmem up and store, until the worker starts",
    "worker_imports": "worker, until it listens (interpreter, imports)",
    "model": "model: weights, self-test, pool",
    "ready": "from then until agentmem up says that all are ready",
}
"""What follows on each other from the process start on. The store starts before the worker, the gateway after it."""
BEFORE = {
    "store": "store, until it serves",
    "worker_ready": "worker, from then until agentmem up knows that it serves",
    "gateway": "gateway, until it says where it listens",
}
"""Further parts of starts in which each service waited for the one before, as results have them."""


def parts(events: Sequence[dict[str, Any]], started: float, found: float) -> dict[str, float]:
    """Seconds of each part, from the lines of the log. `started` and `found` are time.time() of the process start and
    of the moment when a client saw that all are ready.

    Raises RuntimeError where a line is missing.
    """

    def at(message: str, service: str, **fields: str) -> float:
        for event in events:
            if (event["message"], event["service"]) == (message, service) and fields.items() <= event.items():
                return datetime.fromisoformat(event["time"]).timestamp()
        raise RuntimeError(f"the log has no line {message!r} of the {service}")

    worker = at("service started", "up", name="worker")
    moments = (started, worker, at("listening", "worker"), at("model loaded", "worker"), found)
    return {name: later - earlier for name, earlier, later in zip(PARTS, moments[:-1], moments[1:], strict=True)}


def events(log: Path) -> list[dict[str, Any]]:
    """The lines of a log that are JSON; the last may be half written."""
    *lines, _ = log.read_text(errors="replace").split("\n")
    return [json.loads(line) for line in lines if line.startswith("{")]
