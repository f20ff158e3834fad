"""`agentmem agents export` and `import`: an agent as one file."""

import os
from pathlib import Path
from typing import IO

import click

from agentmem import AsyncClient
from agentmem.sizes import byte_size
from agentmem.words import printable
from gateway.cli.agents import only_memory
from gateway.cli.client import Client, agent_argument, client_options


@click.command("export")
@agent_argument
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--model", default="", help="Which of the agent's memories, if there are several.")
@click.option("--force", is_flag=True, help="Replace a file that exists.")
@client_options
def export_agent(client: Client, agent: str, file: Path, model: str, force: bool) -> None:
    """Write AGENT's ledger and KV to FILE, which appears when it is complete, readable by you alone."""
    if file.exists() and not force:
        raise click.ClickException(f"{file} exists; name another file, or replace it with --force")
    if not os.access(file.parent, os.W_OK):
        raise click.ClickException(f"cannot write to {file.parent}: it is no directory, or not yours")

    async def question(agentmem: AsyncClient) -> int:
        return await (await only_memory(agentmem, agent, model)).export(file)

    try:
        size = client.ask(question)
    except OSError as error:
        raise click.ClickException(f"cannot write {file}: {error.strerror}") from error
    done = f"exported {printable(agent)} to {printable(str(file))}, {byte_size(size)}"
    client.show({"file": str(file), "bytes": size}, done)


@click.command("import")
@click.argument("file", type=click.File("rb"))
@click.argument("agent", default="")
@click.option("--model", default="", help="The model's name here; without it as in the file.")
@client_options
def import_agent(client: Client, file: IO[bytes], agent: str, model: str) -> None:
    """Make an agent from FILE, named AGENT or as in the file. Refused if that name exists."""
    answer = client.ask(lambda agentmem: agentmem.import_agent(file, name=agent, model=model))
    made, misfit = answer.info, answer.kv_misfit
    name, model = made.name, made.model
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
