"""The registry file: models by name, in TOML.

    default = "llama"                        # optional

    [models.llama]
    source = "models/llama-8b"               # relative to this file; or a hub id, or "demo"
    kv_bits = 8                              # this and all that follow are optional
    kv_group_size = 32
    context_length = 32768
    ttl = 600                                # seconds without a request until it is unloaded
    pinned = false
    adapters = { support = "adapters/support" }

An adapter is a model of its own, `llama+support`.
"""

import re
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AliasChoices, AliasGenerator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from agentmem.models import DEMO, RegisteredModel, adapter_id, expanded, is_path, problem_of_adapter, problem_of_source
from agentmem.settings import in_words


class _Strict(BaseModel):
    """TOML has types, so nothing is converted. Keys may have hyphens, as they do in the files of settings."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        alias_generator=AliasGenerator(validation_alias=lambda name: AliasChoices(name, name.replace("_", "-"))),
    )


class _Table(_Strict):
    source: Annotated[str, Field(min_length=1)]
    kv_bits: Literal[4, 8] | None = None
    kv_group_size: Literal[32, 64] | None = None
    context_length: Annotated[int, Field(ge=1)] | None = None
    ttl: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    pinned: bool = False
    adapters: dict[str, str] = {}


class _Document(_Strict):
    default: str | None = None
    models: dict[Annotated[str, Field(min_length=1)], _Table] = {}


_KNOWN = {(): tuple(_Document.model_fields), ("models",): tuple(_Table.model_fields)}


@dataclass(frozen=True)
class ModelFile:
    """A registry file that was read. Each of `models` is followed by its adapters; paths are absolute."""

    path: Path
    text: str
    default: str | None
    models: tuple[RegisteredModel, ...]

    def problem(self, location: tuple[str, ...], said: str) -> ValueError:
        """The error that names file, line, table and key; `location` is the key's path in the file."""
        return ValueError(_placed(self.path, self.text, location, said))


def read(path: Path) -> ModelFile:
    """The registry file at `path`. Raises ValueError that says what is wrong where, also of paths that lead nowhere."""
    path = expanded(str(path)).absolute()
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"--models: {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"--models: {path} is not UTF-8 text") from error
    try:
        document = _Document.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"--models: {path} is not TOML: {error}") from error
    except ValidationError as error:
        raise ValueError("; ".join(_mistake(path, text, details) for details in error.errors())) from error
    file = ModelFile(path, text, document.default, ())
    models = [model for name, table in document.models.items() for model in _models(file, name, table)]
    return replace(file, models=tuple(models))


def _models(file: ModelFile, name: str, table: _Table) -> list[RegisteredModel]:
    """The model of a table, and its adapters."""
    directory = file.path.parent
    if problem := problem_of_source(table.source, directory):
        raise file.problem(("models", name, "source"), problem)
    settings = table.model_dump(exclude={"source", "adapters"})
    base = RegisteredModel(name, _source(table.source, directory), **settings)
    models = [base]
    for adapter, given in table.adapters.items():
        place = directory / expanded(given)
        if problem := problem_of_adapter(adapter, place):
            raise file.problem(("models", name, "adapters", adapter), problem)
        models.append(replace(base, model_id=adapter_id(name, adapter), adapter=str(place)))
    return models


def _source(source: str, directory: Path) -> str:
    path = directory / expanded(source)
    return str(path) if source != DEMO and (is_path(source) or path.is_dir()) else source


def _mistake(path: Path, text: str, details: ErrorDetails) -> str:
    location = tuple(str(part) for part in details["loc"] if part != "[key]")
    if details["type"] == "extra_forbidden":
        said = f"unknown key; known are {', '.join(_KNOWN[location[:1] if len(location) > 1 else ()])}"
    elif details["type"] == "missing":
        said = f'is missing; give a directory, a hub id, or "{DEMO}"'
    else:
        said = in_words(details)
    return _placed(path, text, location, said)


def _placed(path: Path, text: str, location: tuple[str, ...], said: str) -> str:
    line = _line(text, location)
    at = f"{path}, line {line}" if line else str(path)
    *table, key = location
    return f"{at}: [{'.'.join(table)}] {key}: {said}" if table else f"{at}: {key}: {said}"


def _line(text: str, location: tuple[str, ...]) -> int | None:
    """The line of the key at `location`, or of the innermost table or inline table around it that is found."""
    found, depth = None, 0
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        here = 0
        if (header := _header(line)) is not None:
            table = header
            here = len(table)
        elif len(location) > len(table) and re.match(rf"\s*[\"']?{re.escape(location[len(table)])}[\"']?\s*[=.]", line):
            here = len(table) + 1
        if here > depth and location[: len(table)] == table:
            found, depth = number, here
    return found


def _header(line: str) -> tuple[str, ...] | None:
    """The keys of a line such as `[models."a.b"]`."""
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
