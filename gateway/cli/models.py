"""`agentmem models`: what requests may name, what it takes, and loading it ahead of them."""

from typing import Any

import click
import grpc
from rich.text import Text

from agentmem.channels import closing_stream
from agentmem.sizes import byte_size
from agentmem.v1 import model_pb2, model_pb2_grpc
from gateway.cli.client import ask, gateway_option, hand_down, json_option, not_empty, retrying, write_json
from gateway.cli.load_progress import LoadProgress, lines_or_bar
from gateway.cli.model_tables import errors_of, models_table, print_model
from gateway.cli.text import console, printable
from gateway.model_report import model_report

_name_argument = click.argument(
    "name", callback=not_empty("the model's name must not be empty; `agentmem models` lists them")
)


@click.group(invoke_without_command=True)
@gateway_option
@json_option
@click.pass_context
def models(context: click.Context, gateway: str, as_json: bool) -> None:
    """Show, load or unload models. Without a command: list them, the default first."""
    if hand_down(context, gateway, as_json=as_json):
        _list(gateway, as_json=as_json)


@models.command("list")
@gateway_option
@json_option
def list_models(gateway: str, as_json: bool) -> None:
    """List the registered models, the default first."""
    _list(gateway, as_json=as_json)


@models.command()
@click.argument("name", default="")
@gateway_option
@json_option
def show(name: str, gateway: str, as_json: bool) -> None:
    """Show all of one model, loaded or not: what it is, and how the memory is divided. Without NAME the default."""

    async def question(channel: grpc.aio.Channel) -> model_pb2.Model:
        stub = model_pb2_grpc.ModelServiceStub(channel)
        found = await retrying(lambda: stub.GetModel(model_pb2.GetModelRequest(model_id=name)))
        return found.model

    model = ask(gateway, question)
    if as_json:
        write_json(as_dict(model))
    else:
        print_model(console(), model)


@models.command()
@_name_argument
@gateway_option
@json_option
def load(name: str, gateway: str, as_json: bool) -> None:
    """Load a model, and show how far it is. It waits its turn, and others make room, as for a request.

    Not needed: a request loads its model, too. With --json a line for each step; the last one has the model. With keys
    it takes one with admin = true.
    """

    async def question(channel: grpc.aio.Channel) -> model_pb2.Model:
        stub = model_pb2_grpc.ModelServiceStub(channel)

        async def attempt() -> model_pb2.Model:
            progress: LoadProgress = _JsonLines() if as_json else lines_or_bar(name)
            model = model_pb2.Model()
            async with closing_stream(stub.LoadModel(model_pb2.LoadModelRequest(model_id=name))) as steps:
                with progress:
                    async for step in steps:
                        progress.told(step.stage, step.progress)
                        model = step.model
            return model

        return await retrying(attempt)

    model = ask(gateway, question)
    if as_json:
        write_json({"stage": "ready", "progress": 1.0, "model": as_dict(model)})
        return
    hot = f"; {model.memory.agents_4k:,} agents of 4,096 tokens fit hot" if model.HasField("memory") else ""
    console().print(Text(f"{printable(model.model_id)} is loaded: {byte_size(model.weight_bytes)} of weights{hot}"))


@models.command()
@_name_argument
@gateway_option
@json_option
def unload(name: str, gateway: str, as_json: bool) -> None:
    """Unload a model when its running requests have ended. Agents' KV is written; the next request loads it again.

    With keys it takes one with admin = true.
    """

    async def question(channel: grpc.aio.Channel) -> int:
        stub = model_pb2_grpc.ModelServiceStub(channel)
        gone = await retrying(lambda: stub.UnloadModel(model_pb2.UnloadModelRequest(model_id=name)))
        return int(gone.freed_bytes)

    if as_json:
        write_json({"model_id": name, "freed_bytes": ask(gateway, question)})
        return
    waiting = console(stderr=True)
    with waiting.status(Text("its running requests end first; Ctrl-C leaves it loaded")):
        freed = ask(gateway, question)
    told = f"was unloaded, freed {byte_size(freed)}" if freed else "was not loaded"
    console().print(Text(f"{printable(name)} {told}"))


class _JsonLines(LoadProgress):
    def told(self, stage: str, share: float) -> None:
        if stage != "ready":  # which goes with the model
            write_json({"stage": stage, "progress": share})


async def registered(channel: grpc.aio.Channel) -> list[model_pb2.Model]:
    """The registered models over all pages, the default first."""
    stub = model_pb2_grpc.ModelServiceStub(channel)
    found: list[model_pb2.Model] = []
    request = model_pb2.ListModelsRequest()
    while True:
        page = await retrying(lambda: stub.ListModels(request))
        found += page.models
        request.page_token = page.next_page_token
        if not page.next_page_token:
            return found


def as_dict(model: model_pb2.Model) -> dict[str, Any]:
    """A model as --json writes it: its name, and what the doors tell of it."""
    return {"model_id": model.model_id, **model_report(model)}


def _list(gateway: str, *, as_json: bool) -> None:
    found = ask(gateway, registered)
    if as_json:
        write_json([as_dict(model) for model in found])
    else:
        console().print(models_table(found))
        for line in errors_of(found):
            console().print(Text(line))
