"""The `agentmem up` that runs on this user's data directory."""

from pathlib import Path
from typing import Any

from gateway.cli.up.lock import holder_of, may_hold
from gateway.cli.up.settings import up_settings


def running() -> tuple[Path, dict[str, Any]]:
    """Return the data directory of the settings, and its lock's content, {} where nobody holds it. Raises Mistake."""
    data = up_settings({}).data_directory
    holder = holder_of(data)
    return data, holder if may_hold(data, int(holder.get("pid", 0))) else {}
