"""Which models there are: those of `--model`, of the registry file, adapters of both, and the bundled one."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from agentmem import model_file
from agentmem.models import DEMO, RegisteredModel, adapter_id, expanded, parse_all, problem_of_adapter


def register(
    names: Iterable[str], adapters: Iterable[str] = (), file: Path | None = None
) -> dict[str, RegisteredModel]:
    """Registered models by id, the default first: the file's `default`, or else the first of `names`, then of the file.

    `names` are what `--model` takes, `adapters` what `--adapter` takes (BASE+NAME=DIRECTORY), `file` is the registry
    file. The bundled demo model is always there, with DEMO for its source. Raises ValueError.
    """
    registered = {name: RegisteredModel(name, source) for name, source in parse_all(names).items()}
    read = model_file.read(file) if file is not None else None
    for model in read.models if read else ():
        if model.model_id in registered:
            assert read is not None
            raise read.problem(("models", model.model_id), "another model has this name; give it another")
        registered[model.model_id] = model
    registered.setdefault(DEMO, RegisteredModel(DEMO, DEMO))
    for given in adapters:
        model = _adapter(given, registered)
        registered[model.model_id] = model
    if read is None or read.default is None:
        return registered
    if read.default not in registered:
        known = ", ".join(registered)
        raise read.problem(("default",), f"{read.default!r} is not registered; registered are {known}")
    return {read.default: registered[read.default], **registered}


def _adapter(given: str, registered: dict[str, RegisteredModel]) -> RegisteredModel:
    """The model that an `--adapter` makes of a registered one. A base may have + and = in its name."""
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
    model_id = adapter_id(base, name)
    if model_id in registered:
        raise ValueError(f"--adapter {given!r}: the name {model_id!r} is taken; give another")
    return replace(registered[base], model_id=model_id, adapter=str(place))
