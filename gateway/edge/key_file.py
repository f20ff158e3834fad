"""The file of keys: JSON that people can read, for its owner alone, replaced whole."""

import fcntl
import json
import logging
import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from agentmem import durable
from agentmem.diagnostics import Diagnostic, FileError
from agentmem.process.logs import event
from gateway.edge.key_ring import Known
from gateway.edge.keys import ApiKey

log = logging.getLogger(__name__)


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    version: Literal[1]
    keys: list[ApiKey]


def parse(path: Path, text: str) -> dict[str, ApiKey]:
    """Raises FileError, without a value of the file."""
    return _validated(path, _decoded(path, text))


def parse_known(path: Path, text: str) -> tuple[dict[str, ApiKey], FileError | None]:
    """Return the keys that this version can read, and what is wrong with others. Raises FileError."""
    data, known, problems = _decoded(path, text), list[ApiKey](), list[Diagnostic]()
    if not isinstance(data, dict) or not isinstance(data.get("keys"), list):
        return _validated(path, data), None
    for number, key in enumerate(data["keys"]):
        try:
            known.append(ApiKey.model_validate(key))
        except ValidationError as error:
            problems += _diagnostics(error, "keys", number)
    return _validated(path, data | {"keys": known}), FileError(path, *problems) if problems else None


def _decoded(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise FileError(path, Diagnostic("", f"is not JSON: {error.msg}", error.lineno, error.colno)) from None
    except (ValueError, RecursionError):
        raise FileError(path, "is not JSON") from None


def _validated(path: Path, data: Any) -> dict[str, ApiKey]:
    try:
        keys = _File.model_validate(data).keys
    except ValidationError as error:
        raise FileError(path, *_diagnostics(error)) from None
    by_id = {key.id: key for key in keys}
    if len(by_id) < len(keys):
        raise FileError(path, "has an id twice")
    return by_id


def _diagnostics(error: ValidationError, *within: str | int) -> Iterator[Diagnostic]:
    for one in error.errors(include_url=False, include_input=False, include_context=False):
        parts = [str(part) for part in (*within, *one["loc"])]
        place = ".".join(part for part in parts if not part.startswith("function-"))
        yield Diagnostic(place, one["msg"].removeprefix("Value error, "))


def render(keys: Iterable[ApiKey]) -> str:
    listed = [key.model_dump(mode="json", exclude_defaults=True) for key in keys]
    return json.dumps({"version": 1, "keys": listed}, indent=2, ensure_ascii=False) + "\n"


_OTHERS = stat.S_IRWXG | stat.S_IRWXO


Identity = tuple[int, ...]
"""Time of change in ns, device, inode, size, mode."""


def identity(found: os.stat_result) -> Identity:
    return found.st_mtime_ns, found.st_dev, found.st_ino, found.st_size, found.st_mode


def read(path: Path) -> tuple[dict[str, ApiKey], Identity]:
    """Raises FileError."""
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            data = file.read()
    except FileNotFoundError:
        raise FileError(path, f"does not exist; `agentmem keys create --keys {path}` makes it") from None
    except OSError as error:
        raise FileError(path, f"cannot be read: {error.strerror}") from error
    if found.st_mode & _OTHERS:
        raise FileError(path, f"is open to others (mode {found.st_mode & 0o777:03o}); run: chmod 600 {path}")
    try:
        return parse(path, data.decode("utf-8")), identity(found)
    except UnicodeDecodeError:
        raise FileError(path, "is not UTF-8") from None


@contextmanager
def changing(path: Path) -> Iterator[dict[str, ApiKey]]:
    """Yield the keys by id, to be changed in the block; written when it ends well. An absent file has none.

    Others wait. Raises FileError.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise FileError(path.parent, f"cannot be written to: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        keys = read(path)[0] if path.exists() else {}
        yield keys
        try:
            durable.write(path, render(keys.values()))
        except OSError as error:
            raise FileError(path, f"cannot be written: {error.strerror}") from error
    finally:
        os.close(lock)


_SETTLED_NS: Final = 100_000_000
"""A file changed again within the clock's resolution looks unchanged; so a younger one is read again."""


class KeyFile:
    """Event loop only. One stat per request (2 µs) sees a change. A file that cannot be read, or is not well-formed, is
    not current until it is mended.
    """

    def __init__(self, path: Path) -> None:
        """Raise FileError."""
        self._path = path
        self._problem = ""
        self._identity: Identity | None = None
        self._keys: dict[str, ApiKey] = {}
        self._read()

    def look(self) -> Known:
        self._refresh()
        return Known(self._keys, is_current=not self._problem)

    def _refresh(self) -> None:
        try:
            found: Identity | None = identity(os.stat(self._path))
        except OSError:
            found = None
        if found is not None and found == self._identity:
            return
        try:
            self._read()
        except FileError as error:
            if self._problem != str(error):
                event(log, "the keys cannot be read, so every request is refused", logging.ERROR, problem=str(error))
            self._problem, self._identity = str(error), None

    def _read(self) -> None:
        keys, identity = read(self._path)
        if self._identity is not None or self._problem:
            event(log, "keys read again", keys=len(keys))
        self._keys, self._problem = keys, ""
        self._identity = identity if abs(time.time_ns() - identity[0]) > _SETTLED_NS else None
