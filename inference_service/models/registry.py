"""Which models there are."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from agentmem.model_registry import register
from agentmem.models import DEMO, RegisteredModel, expanded
from agentmem.settings import SettingsError

_DEMO_DIRECTORY = Path(__file__).parents[1] / "demo_model"


def registry(
    names: Sequence[str], adapters: Sequence[str] = (), file: Path | None = None
) -> dict[str, RegisteredModel]:
    """Models by name, the default first. The bundled demo model is always there.

    The arguments are those of `agentmem.model_registry.register`. Raises SettingsError.
    """
    try:
        given = register(names, adapters, file)
    except ValueError as error:
        raise SettingsError(str(error)) from error
    return {name: replace(model, source=_place(model.source)) for name, model in given.items()}


def _place(source: str) -> str:
    """The directory, or the hub id."""
    if source == DEMO:
        return str(_DEMO_DIRECTORY)
    return str(expanded(source)) if is_directory(source) else source


def is_directory(source: str) -> bool:
    """Whether the source is a directory, and not a model of a hub."""
    return expanded(source).is_dir()
