"""`agentmem agents export` and `import`: an agent as one file."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

import click
import grpc

from agentmem.blockfile import CHUNK_BYTES
from agentmem.sizes import byte_size
from agentmem.v1 import agent_pb2, agent_pb2_grpc, types_pb2
from gateway.cli.agents import only_memory
from gateway.cli.client import agent_argument, ask, gateway_option, json_option, retrying, write_json
from gateway.cli.text import printable

_model_option = click.option("--model", default="", help="Which of the agent's memories, if there are several.")


@click.command("export")
@agent_argument
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@_model_option
@click.option("--force", is_flag=True, help="Replace a file that exists.")
@gateway_option
@json_option
def export_agent(agent: str, file: Path, model: str, force: bool, gateway: str, as_json: bool) -> None:
    """Write AGENT's memory to FILE: what it was told, and its KV. FILE is there when it is whole, and only for you."""
    if file.exists() and not force:
        raise click.ClickException(f"{file} exists; name another file, or replace it with --force")
    try:
        descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    except OSError as error:
        raise click.ClickException(f"cannot write to {file.parent}: {error.strerror}") from error
    try:
        with open(descriptor, "wb") as part:
            size = ask(gateway, lambda channel: _export(channel, agent, model, part))
            part.flush()
            os.fsync(part.fileno())
        os.replace(name, file)
    except OSError as error:
        raise click.ClickException(f"cannot write {file}: {error.strerror}") from error
    finally:
        with suppress(FileNotFoundError):
            os.unlink(name)
    if as_json:
        write_json({"file": str(file), "bytes": size})
    else:
        click.echo(f"exported {printable(agent)} to {printable(str(file))}, {byte_size(size)}")


@click.command("import")
@click.argument("file", type=click.File("rb"))
@click.argument("agent", default="")
@click.option("--model", default="", help="The model's name here; without it as in the file.")
@gateway_option
@json_option
def import_agent(file: IO[bytes], agent: str, model: str, gateway: str, as_json: bool) -> None:
    """Make an agent of FILE, named AGENT or as in the file. Refused if there is one of that name."""
    key = types_pb2.AgentKey(agent_id=agent, model_id=model)

    async def question(channel: grpc.aio.Channel) -> agent_pb2.ImportAgentResponse:
        stub = agent_pb2_grpc.AgentServiceStub(channel)

        async def attempt() -> agent_pb2.ImportAgentResponse:
            return await stub.ImportAgent(_messages(file, key))

        return await (retrying(attempt) if file.seekable() else attempt())  # a pipe cannot be sent again

    made = ask(gateway, question).agent
    if as_json:
        write_json(
            {
                "agent_id": made.key.agent_id,
                "model_id": made.key.model_id,
                "tokens": made.tokens,
                "warm_tokens": made.warm_tokens,
            }
        )
    else:
        name = f"{printable(made.key.agent_id)} on {printable(made.key.model_id)}"
        click.echo(f"imported {name}: {made.tokens:,} tokens, {made.warm_tokens:,} with KV")


async def _export(channel: grpc.aio.Channel, agent: str, model: str, file: IO[bytes]) -> int:
    """Write the agent's file; its bytes."""
    key = await only_memory(channel, agent, model)
    stub = agent_pb2_grpc.AgentServiceStub(channel)

    async def attempt() -> int:
        file.seek(0)
        file.truncate()
        call = stub.ExportAgent(agent_pb2.ExportAgentRequest(key=key))
        try:
            async for response in call:
                file.write(response.chunk)
        finally:
            call.cancel()
        return file.tell()

    return await retrying(attempt)


def _messages(file: IO[bytes], key: types_pb2.AgentKey) -> Iterator[agent_pb2.ImportAgentRequest]:
    if file.seekable():
        file.seek(0)
    yield agent_pb2.ImportAgentRequest(key=key)
    while chunk := file.read(CHUNK_BYTES):
        yield agent_pb2.ImportAgentRequest(chunk=chunk)
