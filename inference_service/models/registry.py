"""Which models there are."""

from collections.abc import Sequence
from pathlib import Path

from agentmem.models import DEMO, RegisteredModel, parse_all
from agentmem.settings import SettingsError

_DEMO_DIRECTORY = Path(__file__).parents[1] / "demo_model"


def registry(names: Sequence[str]) -> dict[str, RegisteredModel]:
    """Models by name, in order, the default first. The bundled demo model is always there.

    `names` are what `--model` takes (`agentmem.models`). Raises SettingsError.
    """
    try:
        given = parse_all(names)
    except ValueError as error:
        raise SettingsError(str(error)) from error
    given.setdefault(DEMO, DEMO)
    return {name: RegisteredModel(name, _place(source)) for name, source in given.items()}


def _place(source: str) -> str:
    """The directory, or the hub id."""
    if source == DEMO:
        return str(_DEMO_DIRECTORY)
    path = Path(source).expanduser()
    return str(path) if path.is_dir() else source
