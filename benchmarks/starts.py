"""Where the time of a start of `agentmem up` goes, by what its services log as JSON. Pure, but for reading the log."""

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

PARTS = {
    "up": "agentmem up, until it starts the services",
    "worker_imports": "worker, until it listens (interpreter, imports)",
    "model": "model: weights, self-test, pool",
    "serving": "from then until the gateway lets calls through",
}
"""What follows on each other from the process start until a turn can run. Store and gateway start beside the worker."""

IN_TURN = {
    "store": "store, until it serves",
    "worker_ready": "worker, from then until agentmem up knows that it serves",
    "gateway": "gateway, until it says where it listens",
}
"""Further parts in results of an `agentmem up` that started a service when the one before was ready."""


def parts(events: Sequence[dict[str, Any]], started: float, found: float) -> dict[str, float]:
    """Seconds of each part, from the lines of the log. `started` and `found` are time.time() of the process start and
    of the moment when the gateway was seen to serve.

    Raises RuntimeError where a line is missing.
    """

    def at(message: str, service: str, **fields: str) -> float:
        for event in events:
            if (event["message"], event["service"]) == (message, service) and fields.items() <= event.items():
                return datetime.fromisoformat(event["time"]).timestamp()
        raise RuntimeError(f"the log has no line {message!r} of the {service}")

    worker = at("service started", "up", name="worker")
    listening = at("listening", "worker")
    loaded = at("model loaded", "worker")
    moments = (started, worker, listening, loaded, found)
    return {name: later - earlier for name, earlier, later in zip(PARTS, moments[:-1], moments[1:], strict=True)}


def events(log: Path) -> list[dict[str, Any]]:
    """The lines of a log that are JSON; the last may be half written."""
    *lines, _ = log.read_text(errors="replace").split("\n")
    return [json.loads(line) for line in lines if line.startswith("{")]
