"""The registry file: models by name, in TOML.

    default = "llama"                        # optional

    [models.llama]
    source = "models/llama-8b"               # relative to this file; or a hub id, or "demo"
    kv_bits = "5/4"                          # this and all that follow are optional
    kv_group_size = 32
    context_length = 32768
    ttl = 600                                # seconds without a request until it is unloaded
    pinned = false
    adapters = { support = "adapters/support" }

An adapter is a model of its own, `llama+support`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import AliasChoices, AliasGenerator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from agentmem.diagnostics import Diagnostic, FileError, TomlFile, unsupported
from agentmem.kv.bits import KVBitsText
from agentmem.process.model_sources import DEMO, expanded, is_path
from agentmem.process.models import RegisteredModel, parse_all, problem_of_adapter, problem_of_source
from agentmem.process.settings import in_words


class _Strict(BaseModel):
    """Converts nothing, since TOML has types. Keys may have hyphens."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        alias_generator=AliasGenerator(validation_alias=lambda name: AliasChoices(name, name.replace("_", "-"))),
    )


class _Table(_Strict):
    source: Annotated[str, Field(min_length=1)]
    kv_bits: KVBitsText | None = None
    kv_group_size: Literal[32, 64] | None = None
    context_length: Annotated[int, Field(ge=1)] | None = None
    ttl: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    pinned: bool = False
    adapters: dict[str, str] = {}


class _Document(_Strict):
    default: str | None = None
    models: dict[Annotated[str, Field(min_length=1)], _Table] = {}


class ModelFile(NamedTuple):
    """Each of `models` is followed by its adapters; paths are absolute."""

    file: TomlFile
    default: str | None
    models: tuple[RegisteredModel, ...]

    def error(self, keys: Sequence[str], message: str) -> FileError:
        """Return an error at the key that `keys` lead to."""
        return FileError(self.file.path, self.file.diagnostic(keys, message))


def read(path: Path) -> ModelFile:
    """Raises FileError, also for paths that lead nowhere."""
    file = TomlFile.read(expanded(str(path)).absolute())
    try:
        document = _Document.model_validate(file.data)
    except ValidationError as error:
        raise FileError(file.path, *(_diagnostic(file, details) for details in error.errors())) from error
    read = ModelFile(file, document.default, ())
    models = [model for name, table in document.models.items() for model in _models(read, name, table)]
    return read._replace(models=tuple(models))


def _models(file: ModelFile, name: str, table: _Table) -> list[RegisteredModel]:
    """Return a table's model and its adapters."""
    directory = file.file.path.parent
    if problem := problem_of_source(table.source, directory):
        raise file.error(("models", name, "source"), problem)
    settings = table.model_dump(exclude={"source", "adapters"})
    base = RegisteredModel(name, _source(table.source, directory), **settings)
    models = [base]
    for adapter, given in table.adapters.items():
        place = directory / expanded(given)
        if problem := problem_of_adapter(adapter, place):
            raise file.error(("models", name, "adapters", adapter), problem)
        models.append(replace(base, model_id=f"{name}+{adapter}", adapter=str(place)))
    return models


def _source(source: str, directory: Path) -> str:
    path = directory / expanded(source)
    return str(path) if source != DEMO and (is_path(source) or path.is_dir()) else source


def _diagnostic(file: TomlFile, details: ErrorDetails) -> Diagnostic:
    keys = tuple(str(part) for part in details["loc"] if part != "[key]")
    if details["type"] == "extra_forbidden":
        known = (_Table if len(keys) > 1 else _Document).model_fields
        message = unsupported(keys[-1], known)
    elif details["type"] == "missing":
        message = f'is missing; give a directory, a hub id, or "{DEMO}"'
    else:
        message = in_words(details)
    return file.diagnostic(keys, message)


def register(
    names: Iterable[str], adapters: Iterable[str] = (), file: Path | None = None
) -> dict[str, RegisteredModel]:
    """Return models by id, the default first: the file's `default`, or else the first of `names`, then of the file.

    `names` are values of `--model`, `adapters` of `--adapter`. The demo model is always there. Raises ValueError.
    """
    registered = {name: RegisteredModel(name, source) for name, source in parse_all(names).items()}
    file_models = read(file) if file is not None else None
    for model in file_models.models if file_models else ():
        if model.model_id in registered:
            assert file_models is not None
            raise file_models.error(("models", model.model_id), "another model has this name; give it another")
        registered[model.model_id] = model
    registered.setdefault(DEMO, RegisteredModel(DEMO, DEMO))
    for given in adapters:
        model = _adapter(given, registered)
        registered[model.model_id] = model
    if file_models is None or file_models.default is None:
        return registered
    if file_models.default not in registered:
        known = ", ".join(registered)
        raise file_models.error(("default",), f"{file_models.default!r} is not registered; registered are {known}")
    return {file_models.default: registered[file_models.default], **registered}


def _adapter(given: str, registered: dict[str, RegisteredModel]) -> RegisteredModel:
    """Return an adapter's model. Its base may have + and = in its name."""
    bases = [name for name, model in registered.items() if model.adapter is None and given.startswith(f"{name}+")]
    base = max(bases, key=len, default="")
    name, separator, directory = given[len(base) + 1 :].partition("=")
    if not base:
        asked, plus, _ = given.partition("+")
        if not asked or not plus or "=" in asked:
            raise ValueError(f"--adapter {given!r}: give BASE+NAME=DIRECTORY")
        known = ", ".join(name for name, model in registered.items() if model.adapter is None)
        raise ValueError(f"--adapter {given!r}: {asked!r} is not registered; registered are {known}")
    if not name or not separator or not directory:
        raise ValueError(f"--adapter {given!r}: give BASE+NAME=DIRECTORY")
    place = expanded(directory)
    if problem := problem_of_adapter(name, place):
        raise ValueError(f"--adapter {given!r}: {problem}")
    model_id = f"{base}+{name}"
    if model_id in registered:
        raise ValueError(f"--adapter {given!r}: the name {model_id!r} is taken; give another")
    return replace(registered[base], model_id=model_id, adapter=str(place))
