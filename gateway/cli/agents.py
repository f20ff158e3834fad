"""`agentmem agents`."""

import sys
from collections.abc import Sequence
from datetime import UTC, datetime

import click
from rich.table import Table

from agentmem import AsyncAgent, AsyncClient
from agentmem.console import FOLD, LINE, RIGHT, console, table, write_json
from agentmem.errors import FailedPrecondition, NotFound
from agentmem.sizes import byte_size
from agentmem.v1 import agent_pb2
from agentmem.words import is_anonymous, printable, tier_name
from gateway.api.contract_json import to_json
from gateway.cli.client import Client, agent_argument, client_options
from gateway.cli.groups import DefaultGroup, Lazy
from gateway.cli.text import age, counted, described
from gateway.cli.turns import turn_text

_BRANCHES = {
    "fork": "Make a second agent with an agent's memory.",
    "snapshot": "Keep an agent's present state under a name.",
    "snapshots": "List an agent's snapshots, newest first.",
    "restore": "Make an agent what it was in a snapshot.",
    "trim": "Drop an agent's memory after its first tokens.",
    "context-policy": "Set what an agent does when its memory outgrows the model's context.",
    "pin": "Keep an agent's KV on disk, whoever needs room.",
    "unpin": "Let an agent's KV make room on disk again.",
    "probe": "Show a turn's cache hit, without taking it.",
}
_model_option = click.option("--model", default="", help="Only on this model; without it on all.")
_all_option = click.option(
    "--all", "everyone", is_flag=True, help="Also those without a name, which are found by their conversation."
)


@click.group(
    cls=DefaultGroup,
    default="list",
    commands=[
        Lazy("export", "gateway.cli.transfers:export_agent", "Write an agent's memory to a file."),
        Lazy("import", "gateway.cli.transfers:import_agent", "Make an agent of a file."),
        *(Lazy(name, f"gateway.cli.branches:{name.replace('-', '_')}", text) for name, text in _BRANCHES.items()),
    ],
)
def agents() -> None:
    """Show, branch, move or delete agents. Without a command: list them."""


@agents.command("list")
@_model_option
@_all_option
@client_options
def list_agents(client: Client, model: str, everyone: bool) -> None:
    """List the agents."""
    found = client.ask(lambda agentmem: find(agentmem, model=model))
    shown = [agent for agent in found if everyone or not is_anonymous(agent.key.agent_id)]
    none = "no agents yet; `agentmem chat NAME` makes one"
    if shown or not found or client.as_json:
        client.show(list(map(to_json, shown)), agents_table(shown, datetime.now(UTC)) if shown else none)
    if hidden := len(found) - len(shown):
        click.echo(f"{counted(hidden, 'agent')} without a name not shown; --all shows them too", err=True)


@agents.command()
@agent_argument
@_model_option
@click.option("--text", is_flag=True, help="Also what is in its memory, turn by turn.")
@client_options
def show(client: Client, agent: str, model: str, text: bool) -> None:
    """Show one agent, on every model that it has a memory on."""

    async def question(agentmem: AsyncClient) -> list[tuple[agent_pb2.Agent, list[agent_pb2.Turn]]]:
        found = await find(agentmem, agent, model)
        return [(one, await _turns(agentmem, one) if text else []) for one in found]

    found = client.ask(question)
    if not found:
        raise click.ClickException(_unknown(agent).message)
    if client.as_json:
        write_json([to_json(one) | ({"history": list(map(to_json, said))} if text else {}) for one, said in found])
        return
    for one, said in found:
        console().print(described(one))
        for turn in said:
            click.echo(turn_text(turn))


@agents.command()
@agent_argument
@_model_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@client_options
def delete(client: Client, agent: str, model: str, yes: bool) -> None:
    """Delete an agent for good: what it was told, and its KV. A terminal is asked before."""
    if sys.stdin.isatty() and not yes:
        click.confirm(f"Delete {printable(agent)} on {model or 'all models'} for good?", abort=True)
    gone = client.ask(lambda agentmem: agentmem.agent(agent, model=model).delete(all_models=not model))
    memories = "1 memory" if gone.memories == 1 else f"{gone.memories} memories"
    client.show(
        {"deleted": gone.memories, "freed_bytes": gone.freed_bytes},
        f"deleted {memories} of {printable(agent)}, freed {byte_size(gone.freed_bytes)}",
    )


async def find(agentmem: AsyncClient, agent: str = "", model: str = "") -> list[agent_pb2.Agent]:
    return [found.raw async for found in agentmem.agents(name=agent, model=model)]


async def only_memory(agentmem: AsyncClient, agent: str, model: str) -> AsyncAgent:
    """Return an agent on `model`, or on its only one. Raises NotFound and FailedPrecondition."""
    found = await find(agentmem, agent, model)
    if not found:
        raise _unknown(agent)
    if len(found) > 1:
        names = ", ".join(printable(each.key.model_id) for each in found)
        raise FailedPrecondition(f"{printable(agent)} has memories on {names}; name one with --model")
    return agentmem.agent(agent, model=found[0].key.model_id)


def _unknown(agent: str) -> NotFound:
    return NotFound("agent", agent, "`agentmem agents --all` lists them")


async def _turns(agentmem: AsyncClient, agent: agent_pb2.Agent) -> list[agent_pb2.Turn]:
    turns = agentmem.agent(agent.key.agent_id, model=agent.key.model_id).turns(text=True)
    return [turn.raw async for turn in turns]


def agents_table(found: Sequence[agent_pb2.Agent], now: datetime) -> Table:
    names = {name: {**FOLD, "min_width": len(name)} for name in ("agent", "model")}
    figures = dict.fromkeys(("version", "tokens", "turns"), RIGHT)
    rows = (
        [
            *(agent.key.agent_id, agent.key.model_id),
            *(str(agent.version.version), f"{agent.tokens:,}", str(agent.turns)),
            *(tier_name(agent.tier), byte_size(agent.warm_bytes), age(agent.update_time, now)),
        ]
        for agent in found
    )
    return table({**names, **figures, "tier": LINE, "disk usage": RIGHT, "last turn": LINE}, rows)
