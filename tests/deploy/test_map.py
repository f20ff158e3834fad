"""ARCHITECTURE.md and docs/decisions.md name files and functions that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLACES = "protos|cache_service|inference_service|gateway|tests|deploy|benchmarks|docs"
NAMED = re.compile(rf"`((?:{PLACES})/[\w./*-]*)(?::([\w.]+))?`")


def named(page: str) -> list[tuple[str, str]]:
    """The paths that a page names, each with the name in it, such as `Pool.allocate`, or ""."""
    return NAMED.findall((ROOT / page).read_text(encoding="utf-8"))


@cache
def names(path: Path) -> frozenset[str]:
    """Return a module's functions, classes, methods as `Class.method` and assigned names; a proto's messages."""
    if path.suffix == ".proto":
        return frozenset(re.findall(r"^(?:message|enum|service) (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE))
    found: set[str] = set()

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(prefix + node.name)
                if isinstance(node, ast.ClassDef):
                    visit(node.body, f"{prefix}{node.name}.")
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            found.update(prefix + target.id for target in targets if isinstance(target, ast.Name))

    visit(ast.parse(path.read_text(encoding="utf-8")).body, "")
    return frozenset(found)


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "docs/decisions.md"])
def test_what_a_page_names_exists(page: str) -> None:
    found = named(page)
    assert len(found) > 10
    assert [path for path, _ in found if not any(ROOT.glob(path.rstrip("/")))] == []
    assert [f"{path}:{name}" for path, name in found if name and name not in names(ROOT / path)] == []


def test_a_walk_has_at_most_fifteen_stops() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        assert len(re.findall(r"^\d+\. ", section, re.MULTILINE)) <= 15, section.partition("\n")[0]
