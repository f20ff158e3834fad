"""`agentmem models`: what requests may name."""

from collections.abc import Sequence
from typing import Any

import click
import grpc
from rich.table import Table
from rich.text import Text

from agentmem.sizes import byte_size
from agentmem.v1 import model_pb2, model_pb2_grpc
from gateway.cli.client import ask, gateway_option, json_option, retrying, write_json
from gateway.cli.text import console, printable
from gateway.model_report import state_name


@click.command()
@gateway_option
@json_option
def models(gateway: str, as_json: bool) -> None:
    """List the registered models, the default first."""
    found = ask(gateway, registered)
    if as_json:
        write_json([as_dict(model) for model in found])
    else:
        console().print(models_table(found))


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
    """A model as --json writes it."""
    return {
        "model_id": model.model_id,
        "state": state_name(model),
        "default": model.is_default,
        "context_length": model.context_length,
        "architecture": model.architecture,
        "dtype": model.dtype,
        "kv_bits": model.kv_bits,
        "kv_bytes_per_token": model.kv_bytes_per_token,
        "weight_bytes": model.weight_bytes,
        "fingerprint": model.fingerprint,
        "error": model.error or None,
    }


def models_table(found: Sequence[model_pb2.Model]) -> Table:
    """The models for people."""
    table = Table(box=None, pad_edge=False)
    table.add_column("model", overflow="fold")
    table.add_column("state")
    table.add_column("context", justify="right")
    table.add_column("architecture")
    table.add_column("weights in memory", justify="right")
    table.add_column("computes in")
    table.add_column("KV per token", justify="right")
    table.add_column("note", overflow="fold")
    for model in found:
        table.add_row(
            Text(printable(model.model_id)),
            state_name(model),
            f"{model.context_length:,}",
            Text(printable(model.architecture)),
            byte_size(model.weight_bytes) if model.weight_bytes else "",
            model.dtype,
            f"{byte_size(model.kv_bytes_per_token)} at {model.kv_bits} bits" if model.kv_bits else "",
            Text(printable(model.error) or ("default" if model.is_default else "")),
        )
    return table
