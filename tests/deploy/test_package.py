from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def pyproject() -> Any:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_a_source_distribution_takes_what_is_at_the_root_alone() -> None:
    """A pattern without a slash before it matches in tests/ and deploy/ as well."""
    included = pyproject()["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert all(pattern.startswith("/") for pattern in included)
    assert not [pattern for pattern in included if not (ROOT / pattern.strip("/")).exists()]
    assert {"/README.md", "/LICENSE", "/CHANGELOG.md"} <= {*included}


def test_each_package_of_the_wheel_has_types() -> None:
    found = pyproject()
    packages = found["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert not [package for package in packages if not (ROOT / package / "py.typed").is_file()]
    assert "Typing :: Typed" in found["project"]["classifiers"]
