"""`agentmem models`."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final

import click
from rich.console import Group
from rich.table import Table
from rich.text import Text

from agentmem import AsyncClient, Model
from agentmem.console import FOLD, LINE, RIGHT, console, is_screen, table, write_json
from agentmem.load_stages import LoadStage
from agentmem.sizes import byte_size
from agentmem.v1 import model_pb2
from agentmem.words import printable
from gateway.api.contract_json import to_json
from gateway.api.reports import load_words, state_name
from gateway.cli.client import NOT_EMPTY, Client, client_options
from gateway.cli.groups import DefaultGroup, program
from gateway.cli.live_line import LiveLine
from gateway.cli.loading import loaded
from gateway.cli.text import described

_STEP: Final = 0.1
"""Write a line after each such share of a stage."""

Report = Callable[[str, float], None]

_SEARCH = "Look for models on the hub, and say whether they fit this machine's memory. Nothing is downloaded."
_PULL = "Download a model from the hub, after saying how large it is and whether it fits this machine's memory."
_HUB_NEEDS = ("huggingface_hub", "mlx_lm", "mlx.core")

_name_argument = click.argument("name", type=NOT_EMPTY)


@click.group(
    cls=DefaultGroup,
    default="list",
    commands=[
        program("search", _SEARCH, "inference_service.hub", "search", needs=_HUB_NEEDS),
        program("pull", _PULL, "inference_service.hub", "pull", needs=_HUB_NEEDS),
    ],
)
def models() -> None:
    """Show, load or unload models. Without a command: list them, the default first."""


@models.command("list")
@client_options
def list_models(client: Client) -> None:
    """List the registered models, the default first."""

    async def question(agentmem: AsyncClient) -> list[model_pb2.Model]:
        return [model.raw async for model in agentmem.models.list()]

    found = client.ask(question)
    client.show(list(map(to_json, found)), Group(models_table(found), *map(Text, errors_of(found))))


@models.command()
@click.argument("name", default="")
@client_options
def show(client: Client, name: str) -> None:
    """Show all of one model, loaded or not: what it is, and how the memory is divided. Without NAME the default."""
    model = client.ask(lambda agentmem: agentmem.models.get(name)).raw
    client.show(to_json(model), described(model))


@models.command()
@_name_argument
@client_options
def load(client: Client, name: str) -> None:
    """Load a model, and show its progress. It waits its turn and unloads others as a request would.

    Requests also load their model. With --json there is a line for each step; the last has the model. If there are
    keys, an admin's is needed.
    """

    async def question(agentmem: AsyncClient) -> Model | None:
        if is_screen(sys.stdout) and not client.as_json:
            with LiveLine(sys.stdout) as line:
                return await loaded(agentmem, name, line)
        model, report = None, _write_step if client.as_json else lines(click.echo)
        async for step in agentmem.models.loading(name):
            report(step.stage, step.progress)
            model = step.model
        return model

    found = client.ask(question)
    assert found is not None
    model = found.raw
    hot = f"; {model.memory.agents_4k:,} agents of 4,096 tokens fit hot" if model.HasField("memory") else ""
    told = f"{printable(model.model_id)} is loaded: {byte_size(model.weight_bytes)} of weights{hot}"
    client.show({"stage": "ready", "progress": 1.0, "model": to_json(model)}, told)


@models.command()
@_name_argument
@client_options
def unload(client: Client, name: str) -> None:
    """Unload a model after its running requests. Agents' KV is written; the next request loads it again.

    If there are keys, an admin's is needed.
    """
    waiting = console(stderr=True).status(Text("its running requests end first; Ctrl-C leaves it loaded"))
    if not client.as_json:
        waiting.start()
    try:
        freed = client.ask(lambda agentmem: agentmem.models.unload(name))
    finally:
        waiting.stop()
    unloaded = f"was unloaded, freed {byte_size(freed)}" if freed else "was not loaded"
    client.show({"model_id": name, "freed_bytes": freed}, f"{printable(name)} {unloaded}")


def _write_step(stage: str, share: float) -> None:
    if stage != "ready":  # which is written with the model
        write_json({"stage": stage, "progress": share})


def lines(write: Callable[[str], object]) -> Report:
    """Report each stage that is not done when it begins, and each tenth of it."""
    stage, share = "", 0.0

    def report(now: str, done: float) -> None:
        nonlocal stage, share
        began = now != stage
        if done >= 1 if began else done < share + _STEP:
            return
        stage, share = now, done
        write(_words(now) if began and not done else f"{_words(now)}: {done:.0%}")

    return report


def _words(stage: str) -> str:
    with suppress(ValueError):
        return LoadStage(stage).words
    return printable(stage)  # a newer worker may have others


def models_table(found: Sequence[model_pb2.Model]) -> Table:
    """Return the models; only names and notes wrap at 80 columns."""
    figures = dict.fromkeys(("context", "weights", "4K agents"), RIGHT)
    rows = (
        (
            model.model_id,
            state_name(model),
            f"{model.context_length:,}" if model.context_length else "",
            byte_size(model.weight_bytes) if model.weight_bytes else "",
            f"{model.memory.agents_4k:,}" if model.HasField("memory") else "",
            "; ".join(_notes(model)),
        )
        for model in found
    )
    return table({"model": {**FOLD, "min_width": 12}, "state": LINE, **figures, "note": FOLD}, rows)


def errors_of(found: Sequence[model_pb2.Model]) -> Iterator[str]:
    for model in found:
        if model.error:
            yield f"{printable(model.model_id)}: {printable(model.error)}"


def _notes(model: model_pb2.Model) -> Iterator[str]:
    if model.is_default:
        yield "default"
    if model.HasField("progress"):
        yield load_words(model.progress)
    if model.pinned:
        yield "pinned"
    if model.HasField("ttl"):
        yield f"unloaded after {model.ttl.ToTimedelta().total_seconds():g} idle seconds"
    if "+" in model.model_id or model.adapter:
        yield "adapter"
    if model.kv_bits_measured and not any(
        each.good for each in model.kv_bits_measured if each.kv_bits == model.kv_bits
    ):
        best = model.recommended_kv_bits
        yield f'kv_bits = "{best}" recommended' if best else "loses quality with quantized KV"
