"""Lint of the English in comments and docstrings: `python -m tests.english` prints each package's words per line.

Packages are directories; those that [tool.english] of pyproject.toml names include all below them that it does not
name. Lines are all lines of the files. With --check only what breaks a rule is printed, and then the status is 1.
"""

from __future__ import annotations

import ast
import re
import sys
import tokenize
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PLACES: Final = ("cache_service", "inference_service", "gateway", "protos", "deploy", "benchmarks", "tests")
DONE: Final = {"words": 1.0, "refused": 0}
"""The limits of a package that pyproject.toml does not name."""
_BEGINNING: Final = re.compile(r"\W*(?:What|Whether|That|Those|Who|Whose|Likewise|Of)\b")
_WORD: Final = re.compile(r"\banew\b|(?<!\bleft )(?<!leave )(?<!leaves )\bbehind\b(?! \w+ (?:gateway|proxy))", re.I)


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield a file's comments and docstrings, those of attributes included, with their lines. Comments keep their #."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text
    with path.open("rb") as file:
        yield from ((t.start[0], t.string) for t in tokenize.tokenize(file.readline) if t.type == tokenize.COMMENT)


def refused(text: str) -> Iterator[str]:
    """Yield the words that the rules refuse in a text."""
    if not text.startswith("#") and (beginning := _BEGINNING.match(text)):
        yield f"begins with {beginning[0].strip()}"
    yield from _WORD.findall(text)


def package(path: Path, named: Iterable[str]) -> str:
    """Return the nearest directory above a file that is named, or else the file's own."""
    return next((name for parent in path.parents if (name := str(parent)) in named), str(path.parent))


def check(root: Path, limits: Mapping[str, Mapping[str, float]]) -> tuple[list[str], list[str]]:
    """Return a line about each package under a root, and one about each limit that is exceeded."""
    words, lines, found = Counter[str](), Counter[str](), defaultdict[str, list[str]](list)
    for path in (path for place in PLACES for path in sorted((root / place).rglob("*.py")) if "_pb2" not in path.name):
        short = path.relative_to(root)
        name = package(short, limits)
        lines[name] += path.read_bytes().count(b"\n")
        for line, text in texts(path):
            words[name] += len(text.strip("#").split())
            found[name] += [f"{short}:{line}: {word}" for word in refused(text)]
    table, exceeded = [], []
    for name in sorted(lines):
        limit, rate = limits.get(name, DONE), words[name] / max(1, lines[name])
        table.append(f"{rate:.2f} words per line, {len(found[name]):3} refused in {name}")
        if rate > limit["words"]:
            exceeded.append(f"{name}: {rate:.2f} words per line in comments and docstrings, more than {limit['words']}")
        if len(found[name]) > limit["refused"]:
            exceeded += found[name]
    return table, exceeded


if __name__ == "__main__":
    table, exceeded = check(ROOT, tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["english"])
    shown = exceeded if sys.argv[1:] == ["--check"] else table
    sys.stdout.write("".join(f"{line}\n" for line in shown))
    sys.exit(1 if exceeded and shown is exceeded else 0)
