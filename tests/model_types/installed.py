"""The model types of the installed mlx-lm, from its source: nothing of it is imported, since some modules end the
process.
"""

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path


def version() -> str:
    return metadata.version("mlx-lm")


@cache
def types() -> tuple[str, ...]:
    """Names of the modules that have a model."""
    found = (_package() / "models").glob("*.py")
    return tuple(sorted((path.stem for path in found if {"Model", "ModelArgs"} <= set(_names(path))), key=str.lower))


@cache
def aliases() -> Mapping[str, str]:
    """Other names of types in config.json, and the type that mlx-lm takes for each."""
    for node in ast.parse((_package() / "utils.py").read_text()).body:
        if isinstance(node, ast.Assign) and "MODEL_REMAPPING" in map(ast.unparse, node.targets):
            found: dict[str, str] = ast.literal_eval(node.value)
            return found
    return {}


def _package() -> Path:
    spec = find_spec("mlx_lm")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _names(path: Path) -> Iterator[str]:
    """Yield top-level names, defined or imported."""
    for node in ast.parse(path.read_text()).body:
        match node:
            case ast.ClassDef(name=name):
                yield name
            case ast.ImportFrom(names=names):
                yield from (each.asname or each.name for each in names)
            case ast.Assign(targets=targets):
                yield from map(ast.unparse, targets)
