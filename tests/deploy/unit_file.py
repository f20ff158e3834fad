from __future__ import annotations

import shlex
from pathlib import Path

_SPECIFIERS = {"%S": "/var/lib", "%C": "/var/cache", "%t": "/run", "%h": "/home/somebody"}


class UnitFile:
    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._values: dict[str, list[str]] = {}
        for line in path.read_text(encoding="utf-8").splitlines():
            if line and line[0] not in "#[":
                key, _, value = line.partition("=")
                self._values.setdefault(key, []).append(value)

    def all(self, key: str) -> list[str]:
        return [word for value in self._values.get(key, []) for word in value.split()]

    def one(self, key: str) -> str:
        (value,) = self._values[key]
        return value

    @property
    def command(self) -> list[str]:
        return [_filled_in(word) for word in shlex.split(self.one("ExecStart"))]

    @property
    def environment(self) -> dict[str, str]:
        return dict(_filled_in(word).split("=", 1) for word in self.all("Environment"))

    def seconds(self, key: str) -> float:
        value = self.one(key)
        for suffix, factor in (("min", 60.0), ("", 1.0)):
            if value.endswith(suffix):
                return float(value.removesuffix(suffix)) * factor
        raise AssertionError(value)


def _filled_in(word: str) -> str:
    for specifier, value in _SPECIFIERS.items():
        word = word.replace(specifier, value)
    return word
