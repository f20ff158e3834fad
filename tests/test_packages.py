"""The maps of packages: what an `__init__.py` says of where to read."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAPPED = (
    "cache_service",
    "gateway",
    "inference_service",
    "inference_service/engine",
    "benchmarks",
    "protos/agentmem",
    "protos/agentmem/kv",
    "protos/agentmem/process",
)
UNNAMED = {"__init__", "__main__"}


@pytest.mark.parametrize("package", MAPPED)
def test_a_map_names_all_that_the_package_has(package: str) -> None:
    place = ROOT / package
    children = {path.stem for path in place.glob("*.py")} | {path.parent.name for path in place.glob("*/__init__.py")}
    words = set(re.findall(r"\w+", (place / "__init__.py").read_text()))
    assert children - UNNAMED - words == set(), "missing in the docstring of __init__.py"
