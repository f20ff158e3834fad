"""The model that is measured, as both servers read it."""

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from agentmem.console import Mistake
from agentmem.process.model_cache import snapshot
from agentmem.process.model_registry import register
from agentmem.process.model_sources import DEMO, expanded
from agentmem.process.models import RegisteredModel
from gateway.cli.up.background import registered_name
from gateway.cli.up.default_model import check_hub, check_model
from gateway.cli.up.fetching import fetch
from gateway.cli.up.settings import UpSettings, up_settings

_CONTEXT: Final = 4096


@dataclass(frozen=True)
class Subject:
    """`ends`: ids of tokens that end a turn, as far as its files name them."""

    model: RegisteredModel
    directory: Path
    ends: tuple[int, ...]

    @property
    def name(self) -> str:
        return self.model.model_id

    @property
    def is_demo(self) -> bool:
        return self.model.source == DEMO


def subject(given: str) -> Subject:
    """Return the model as `agentmem up` takes it, downloaded if it is not here. Raises ClickException."""
    settings = up_settings({})
    try:
        if given and given not in register(settings.model, settings.adapter, settings.models):
            settings = up_settings({"model": [given, *settings.model]})
        name = registered_name(given)
        model = register(settings.model, settings.adapter, settings.models)[name]
        check_model(settings, name)
        check_hub(settings, name)
    except ValueError as error:
        raise Mistake(str(error)) from error
    if model.adapter is not None:
        raise Mistake(f"{name} has an adapter, with which mlx-lm cannot be measured the same way; take its base")
    return _there(model, settings)


def _there(model: RegisteredModel, settings: UpSettings) -> Subject:
    fetch(model.source, settings)
    directory = directory_of(model.source)
    if directory is None:
        raise Mistake(f"{model.model_id} is not on this machine: agentmem models pull {model.source}")
    return Subject(_with_settings(model, settings), directory, tuple(sorted(ends(directory))))


def _with_settings(model: RegisteredModel, settings: UpSettings) -> RegisteredModel:
    given = {**vars(model)}
    given["kv_bits"] = model.kv_bits or settings.kv_bits
    given["context_length"] = model.context_length or settings.context_length
    return RegisteredModel(**given)


def directory_of(source: str) -> Path | None:
    """Return where a model's files are, or None."""
    if source == DEMO:
        worker = importlib.util.find_spec("inference_service")
        places = worker.submodule_search_locations if worker else None
        return Path(places[0]) / "demo_model" if places else None
    directory = expanded(source)
    return directory.absolute() if directory.is_dir() else snapshot(source)


def ends(directory: Path) -> set[int]:
    found: set[int] = set()
    for name in ("config.json", "generation_config.json"):
        end = _read(directory / name).get("eos_token_id")
        found |= {each for each in (end if isinstance(end, list) else [end]) if isinstance(each, int)}
    word = _read(directory / "tokenizer_config.json").get("eos_token")
    word = word.get("content") if isinstance(word, dict) else word
    added = _read(directory / "tokenizer.json").get("added_tokens") or ()
    return found | {token["id"] for token in added if word and token.get("content") == word}


def context_of(directory: Path) -> int:
    """Return the tokens of context that its files name."""
    return int(_read(directory / "config.json").get("max_position_embeddings") or _CONTEXT)


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
