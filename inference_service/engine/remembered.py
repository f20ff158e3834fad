"""What was measured once, by name, in one JSON file: it costs seconds to find out again, and nothing else."""

import json
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any


class Remembered:
    """JSON values by name. Thread-safe.

    A file that cannot be read is taken as empty, and one that cannot be written is not missed. It is replaced whole, so
    that a process that dies meanwhile leaves the old one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()

    def get(self, name: str) -> Any:
        """What is remembered under a name; None if nothing is."""
        with self._lock:
            return self._read().get(name)

    def put(self, name: str, value: Any) -> None:
        """Remember a value under a name."""
        with self._lock:
            known = {**self._read(), name: value}
            partial = self._path.with_suffix(f".{os.getpid()}.tmp")
            try:
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                partial.write_text(json.dumps(known, indent=1))
                partial.replace(self._path)
            except OSError:
                with suppress(OSError):
                    partial.unlink()

    def _read(self) -> dict[str, Any]:
        try:
            known = json.loads(self._path.read_text())
        except (OSError, ValueError):
            return {}
        return known if isinstance(known, dict) else {}
