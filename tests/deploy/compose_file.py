from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import yaml

_VARIABLE = re.compile(r"\$\{\w+:-([^}]*)\}")


def compose(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(_VARIABLE.sub(r"\1", path.read_text(encoding="utf-8")))
    return loaded


def instructions(path: Path) -> list[tuple[str, str]]:
    joined = re.sub(r"\\\n\s*", " ", path.read_text(encoding="utf-8"))
    lines = [line for line in joined.splitlines() if line and not line.startswith("#")]
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines)]


def environment(path: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, rest in instructions(path):
        if name == "FROM":
            found.clear()
        elif name == "ENV":
            found.update(pair.split("=", 1) for pair in shlex.split(rest))
    return found
