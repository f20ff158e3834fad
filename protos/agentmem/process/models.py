"""Registered models as flags give them, and the setting `offline`."""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from agentmem.process.model_folders import file_problem
from agentmem.process.model_sources import DEMO, expanded, is_path, parse
from agentmem.process.settings import ServiceSettings

ADAPTER_FILES: Final = ("adapter_config.json", "adapters.safetensors")
"""Files that mlx-lm reads."""

_HUB_ID = re.compile(r"(?=.{1,96}$)\w[\w.-]*/\w[\w.-]*", re.ASCII)
_ADAPTER_NAME = re.compile(r"[^+=\s]+")


@dataclass(frozen=True)
class RegisteredModel:
    """A model to request. `source` is a directory or a hub id, `adapter` a directory of LoRA weights; None is the
    worker's setting. `ttl`: idle seconds until it is unloaded. `pinned` models make no room for others.
    """

    model_id: str
    source: str
    adapter: str | None = None
    kv_bits: str | None = None
    kv_group_size: int | None = None
    context_length: int | None = None
    ttl: float | None = None
    pinned: bool = False


def parse_all(given: Iterable[str]) -> dict[str, str]:
    """Return sources by name, in order. Raises ValueError."""
    sources: dict[str, str] = {}
    for one in given:
        name, source = parse(one)
        if name in sources:
            raise ValueError(f"--model {one!r}: the name {name!r} is taken; give another with NAME=")
        if problem := problem_of_source(source, Path()):
            raise ValueError(f"--model {one!r}: {problem}")
        sources[name] = source
    return sources


def problem_of_source(source: str, directory: Path) -> str:
    """Return why `source`, relative to `directory`, cannot be a model, or ""."""
    if source == DEMO:
        return ""
    path = directory / expanded(source)
    if path.exists():
        return "" if path.is_dir() else file_problem(path)
    if is_path(source):
        return f"{path} does not exist"
    if "/" not in source:
        words = " ".join(re.split(r"[^\w.-]+", source)).strip()
        return (
            f"there is no such directory, and hub ids are OWNER/NAME; did you mean OWNER/{source} or ./{source}? "
            f"`agentmem models search {words}` finds models"
        )
    if not is_hub_id(source):
        return f"{source} does not exist, and is no hub id, which would be OWNER/NAME"
    return ""


def is_hub_id(name: str) -> bool:
    return _HUB_ID.fullmatch(name) is not None


def problem_of_adapter(name: str, directory: Path) -> str:
    if not _ADAPTER_NAME.fullmatch(name):
        return f"{name!r} cannot name an adapter; give a name without spaces, + and ="
    if not directory.is_dir():
        return f"{directory} {'is not a directory' if directory.exists() else 'does not exist'}"
    missing = [file for file in ADAPTER_FILES if not (directory / file).is_file()]
    if missing:
        return f"{directory} has no {' and no '.join(missing)}; give the directory that mlx_lm.lora wrote"
    return ""


VARIABLE: Final = "AGENTMEM_OFFLINE"
"""Forbids all processes the network for models, whatever their settings say."""

_BOOL: Final = TypeAdapter(bool)


def _strictest(offline: bool) -> bool:
    """Raises ValueError."""
    word = os.environ.get(VARIABLE, "")
    try:
        return _BOOL.validate_python(word.strip() or False) or offline
    except ValidationError:
        raise ValueError(f"{VARIABLE} is {word!r}; set it to 1, true or yes, or to 0, false or no") from None


Offline = Annotated[bool, AfterValidator(_strictest)]
"""A setting that the variable can only make true; its field needs `validate_default=True`."""


class ModelSettings(ServiceSettings):
    model: list[str] = Field(
        default_factory=list,
        description="PATH_OR_HUB_ID, NAME=PATH_OR_HUB_ID or demo; repeatable, the first is the default where "
        "--models names none",
    )
    models: Path | None = Field(None, description="registry file: models with settings of their own, in TOML")
    adapter: list[str] = Field(
        default_factory=list,
        description="BASE+NAME=DIRECTORY: a LoRA adapter on the model BASE, served as BASE+NAME; repeatable",
    )
    offline: Offline = Field(
        False,
        validate_default=True,
        description=f"never use the network: models are directories, or were downloaded before; so does {VARIABLE}=1",
    )
