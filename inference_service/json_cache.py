import json
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any


class JsonCache:
    """JSON values by name in one file. Thread-safe; of several processes the last writer wins.

    An unreadable file counts as empty; values that cannot be written are kept in memory.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._unwritten: dict[str, Any] | None = None

    def get(self, name: str) -> Any:
        with self._lock:
            return self._known().get(name)

    def put(self, name: str, value: Any) -> None:
        self.update(lambda known: {**known, name: value})

    def update(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        with self._lock:
            known = change(self._known())
            partial = self._path.with_suffix(f".{os.getpid()}.tmp")
            try:
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                partial.write_text(json.dumps(known, indent=1))
                partial.replace(self._path)
                self._unwritten = None
            except OSError:
                self._unwritten = known
                with suppress(OSError):
                    partial.unlink()

    def _known(self) -> dict[str, Any]:
        return _read(self._path) if self._unwritten is None else self._unwritten


def _read(path: Path) -> dict[str, Any]:
    try:
        known = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}
