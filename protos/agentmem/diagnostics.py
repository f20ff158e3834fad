"""Mistakes in files that people write: a line for each, such as

    models.toml:7:1: models.small.kv_bit: is not supported; did you mean kv_bits?

In an RPC a diagnostic is a `Violation` whose problem begins with "line 7, column 1: ".
"""

import json
import re
import tomllib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, NamedTuple

from agentmem.errors import Violation

_PLAIN_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
_TOML_PLACE: Final = re.compile(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", re.DOTALL)
_PLACED: Final = re.compile(r"line (\d+), column (\d+): (.*)", re.DOTALL)


class Diagnostic(NamedTuple):
    """One mistake at a dotted path, or "" for the file. `line` and `column` count from 1; 0: unknown."""

    field: str
    message: str
    line: int = 0
    column: int = 0

    def render(self, path: Path | str) -> str:
        place = f"{path}:{self.line}:{self.column}" if self.line else str(path)
        return ": ".join(part for part in (place, self.field, self.message) if part)

    def violation(self) -> Violation:
        place = f"line {self.line}, column {self.column}: " if self.line else ""
        return Violation(self.field, place + self.message)

    @classmethod
    def of_violation(cls, violation: Violation) -> "Diagnostic":
        if (found := _PLACED.fullmatch(violation.problem)) is None:
            return cls(violation.field, violation.problem)
        return cls(violation.field, found[3], int(found[1]), int(found[2]))


class FileError(ValueError):
    def __init__(self, path: Path | str, *diagnostics: Diagnostic | str) -> None:
        """A text is about the whole file."""
        self.path = path
        self.diagnostics = [Diagnostic("", one) if isinstance(one, str) else one for one in diagnostics]
        super().__init__("\n".join(diagnostic.render(path) for diagnostic in self.diagnostics))


@dataclass(frozen=True)
class TomlFile:
    path: Path
    text: str
    data: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> "TomlFile":
        """Raises FileError."""
        try:
            text = path.read_text(encoding="utf-8")
            return cls(path, text, tomllib.loads(text))
        except OSError as error:
            raise FileError(path, f"cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise FileError(path, "is not TOML: it is not UTF-8") from error
        except tomllib.TOMLDecodeError as error:
            said, line, column = found.groups() if (found := _TOML_PLACE.fullmatch(str(error))) else (str(error), 0, 0)
            place = (int(line), int(column)) if line else (text.count("\n") + 1, len(text) - text.rfind("\n"))
            raise FileError(path, Diagnostic("", f"is not TOML: {said}", *place)) from error

    def diagnostic(self, keys: Sequence[str], message: str) -> Diagnostic:
        """Return a mistake at a key, or at the innermost table around it."""
        field = ".".join(key if _PLAIN_KEY.fullmatch(key) else json.dumps(key, ensure_ascii=False) for key in keys)
        return Diagnostic(field, message, *self._position(keys))

    def _position(self, keys: Sequence[str]) -> tuple[int, int]:
        """Return line and column, or zeros. Underscores equal hyphens."""
        wanted = [re.sub(r"\\-|_", "[-_]", re.escape(key)) for key in keys]
        place, depth = (0, 0), 0
        table: tuple[str, ...] = ()
        for number, line in enumerate(self.text.splitlines(), 1):
            here = 0
            if (header := _header(line)) is not None:
                table, here = header, len(header)
            elif len(keys) > len(table) and re.match(rf"\s*[\"']?{wanted[len(table)]}[\"']?\s*[=.]", line):
                here = len(table) + 1
            if here > depth and tuple(keys[: len(table)]) == table:
                place, depth = (number, len(line) - len(line.lstrip()) + 1), here
        return place


def did_you_mean(given: str, known: Iterable[str], prefix: str = "") -> str:
    """Return "; did you mean --data?" or "". Leading dashes and slashes are ignored, and the prefix."""
    names = {name.lstrip("-/").removeprefix(prefix): name for name in known}
    found = get_close_matches(given.lstrip("-/").removeprefix(prefix), names, n=2)
    return f"; did you mean {' or '.join(names[name] for name in found)}?" if found else ""


def unsupported(given: str, known: Collection[str], prefix: str = "") -> str:
    return f"is not supported{did_you_mean(given, known, prefix) or '; supported are ' + ', '.join(known)}"


def _header(line: str) -> tuple[str, ...] | None:
    """Return the keys of a header such as `[models."a.b"]`."""
    if not line.lstrip().startswith("["):
        return None
    try:
        node = tomllib.loads(line)
    except ValueError:
        return None
    keys: list[str] = []
    while isinstance(node, dict) and node:
        key, node = next(iter(node.items()))
        keys.append(key)
    return tuple(keys)
