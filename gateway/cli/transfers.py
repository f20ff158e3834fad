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
from agentmem.channels import closing_stream
from agentmem.sizes import byte_size
from agentmem.v1 import agent_pb2, agent_pb2_grpc, types_pb2
from gateway.cli.agents import only_memory
from gateway.cli.client import Client, agent_argument, client_options, retrying
from gateway.cli.text import printable


@click.command("export")
@agent_argument
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--model", default="", help="Which of the agent's memories, if there are several.")
@click.option("--force", is_flag=True, help="Replace a file that exists.")
@client_options
def export_agent(client: Client, agent: str, file: Path, model: str, force: bool) -> None:
    """Write AGENT's memory to FILE: what it was told, and its KV. FILE is there when it is whole, and only for you."""
    if file.exists() and not force:
        raise click.ClickException(f"{file} exists; name another file, or replace it with --force")
    try:
        descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    except OSError as error:
        raise click.ClickException(f"cannot write to {file.parent}: {error.strerror}") from error
    try:
        with open(descriptor, "wb") as part:
            size = client.ask(lambda channel: _export(channel, agent, model, part))
            part.flush()
            os.fsync(part.fileno())
        os.replace(name, file)
    except OSError as error:
        raise click.ClickException(f"cannot write {file}: {error.strerror}") from error
    finally:
        with suppress(FileNotFoundError):
            os.unlink(name)
    done = f"exported {printable(agent)} to {printable(str(file))}, {byte_size(size)}"
    client.show({"file": str(file), "bytes": size}, done)


async def _export(channel: grpc.aio.Channel, agent: str, model: str, file: IO[bytes]) -> int:
    """Write the agent's file. Return its bytes."""
    key = await only_memory(channel, agent, model)
    stub = agent_pb2_grpc.AgentServiceStub(channel)

    async def attempt() -> int:
        file.seek(0)
        file.truncate()
        async with closing_stream(stub.ExportAgent(agent_pb2.ExportAgentRequest(key=key))) as responses:
            async for response in responses:
                file.write(response.chunk)
        return file.tell()

    return await retrying(attempt)


@click.command("import")
@click.argument("file", type=click.File("rb"))
@click.argument("agent", default="")
@click.option("--model", default="", help="The model's name here; without it as in the file.")
@client_options
def import_agent(client: Client, file: IO[bytes], agent: str, model: str) -> None:
    """Make an agent of FILE, named AGENT or as in the file. Refused if there is one of that name."""
    key = types_pb2.AgentKey(agent_id=agent, model_id=model)

    async def question(channel: grpc.aio.Channel) -> agent_pb2.ImportAgentResponse:
        stub = agent_pb2_grpc.AgentServiceStub(channel)

        async def attempt() -> agent_pb2.ImportAgentResponse:
            return await stub.ImportAgent(_messages(file, key))

        return await (retrying(attempt) if file.seekable() else attempt())  # a pipe cannot be sent again

    answer = client.ask(question)
    made, misfit = answer.agent, answer.kv_misfit
    name, model = made.key.agent_id, made.key.model_id
    client.show(
        {
            "agent_id": name,
            "model_id": model,
            "tokens": made.tokens,
            "warm_tokens": made.warm_tokens,
            "kv_misfit": misfit,
        },
        f"imported {printable(name)} on {printable(model)}: {made.tokens:,} tokens, {made.warm_tokens:,} with KV"
        + (f"; {printable(misfit)}: the first turn computes it again" if misfit else ""),
    )


def _messages(file: IO[bytes], key: types_pb2.AgentKey) -> Iterator[agent_pb2.ImportAgentRequest]:
    if file.seekable():
        file.seek(0)
    yield agent_pb2.ImportAgentRequest(key=key)
    while chunk := file.read(CHUNK_BYTES):
        yield agent_pb2.ImportAgentRequest(chunk=chunk)
