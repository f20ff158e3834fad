"""Libraries of others in the page: known by version, licence and checksum, and nothing else loads anything."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

import pytest

from gateway.ui.files import STATIC

VENDOR = STATIC / "vendor"
VENDORED: list[dict[str, Any]] = json.loads((VENDOR / "VENDORED.json").read_text())
OURS = [path for path in sorted(STATIC.rglob("*.js")) if VENDOR not in path.parents]
_IMPORT = re.compile(
    r"""(?:^import\s(?:[^;]*?\sfrom\s)?|^export\s[^;]*?\sfrom\s|\bimport\()['"]([^'"]+)['"]""", re.MULTILINE
)


def test_every_file_is_what_its_checksum_says() -> None:
    listed = {each["file"]: each["sha256"] for package in VENDORED for each in package["files"]}
    there = {path.name for path in VENDOR.iterdir() if path.suffix in (".js", ".css")}
    assert there == listed.keys()
    for name, checksum in listed.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == checksum, name


def test_every_package_has_its_licence() -> None:
    packages = [each for package in VENDORED for each in (package, *package["contains"])]
    words = {"MIT": "Permission is hereby granted", "ISC": "Permission to use", "Apache-2.0": "Apache License"}
    for package in packages:
        assert package["version"]
        assert words[package["licence"]] in (VENDOR / package["licence_file"]).read_text()


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.relative_to(STATIC).as_posix())
def test_a_module_imports_the_pages_own_files_alone(path: Any) -> None:
    source = path.read_text()
    imported = _IMPORT.findall(source)
    for name in imported:
        assert name.startswith("."), name
        assert (path.parent / name).resolve().is_file(), name
    assert not re.search(r"https?://", source), "the page asks its own gateway and nobody else"
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|dangerouslySet|\beval\(", source)
    assert source.startswith("/**"), "says what it is about"
    assert len(source.splitlines()) <= 300


def test_the_page_loads_its_own_files_alone() -> None:
    page = (STATIC / "index.html").read_text()
    named = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert named and all((STATIC / name).is_file() for name in named)
    assert "<style" not in page and not re.search(r"\son\w+=", page)
    for sheet in STATIC.glob("*.css"):
        assert not re.search(r"url\(|@import", sheet.read_text())
