"""`agentmem agents`: whose memory there is, and erasing it."""

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click
import grpc
from rich.table import Table
from rich.text import Text

from agentmem.errors import NotFound
from agentmem.sizes import byte_size
from agentmem.v1 import agent_pb2, agent_pb2_grpc, types_pb2
from gateway.cli.client import agent_argument, ask, gateway_option, hand_down, json_option, retrying, write_json
from gateway.cli.lazy import LazyCommand, LazyGroup
from gateway.cli.text import age, console, iso_time, printable
from gateway.memory_report import tier_name

_model_option = click.option("--model", default="", help="Only on this model; without it on all.")


_TRANSFERS = {
    "export": LazyCommand(
        "gateway.cli.transfers:export_agent", "Write AGENT's memory to FILE: what it was told, and its KV."
    ),
    "import": LazyCommand(
        "gateway.cli.transfers:import_agent", "Make an agent of FILE, named AGENT or as in the file."
    ),
}


@click.group(cls=LazyGroup, lazy=_TRANSFERS, invoke_without_command=True)
@gateway_option
@json_option
@click.pass_context
def agents(context: click.Context, gateway: str, as_json: bool) -> None:
    """Show, move or erase agents. Without a command: list them."""
    if hand_down(context, gateway, as_json=as_json):
        _list(gateway, "", as_json=as_json)


@agents.command("list")
@_model_option
@gateway_option
@json_option
def list_agents(gateway: str, model: str, as_json: bool) -> None:
    """List the agents."""
    _list(gateway, model, as_json=as_json)


@agents.command()
@agent_argument
@_model_option
@gateway_option
@json_option
def show(agent: str, gateway: str, model: str, as_json: bool) -> None:
    """Show one agent, on every model that it has a memory on."""
    found = ask(gateway, lambda channel: find(channel, agent_id=agent, model_id=model))
    if not found:
        raise click.ClickException(NotFound("agent", agent).message)
    if as_json:
        write_json([as_dict(one) for one in found])
        return
    for one in found:
        table = Table(show_header=False, box=None)
        for name, value in as_dict(one).items():
            table.add_row(name.replace("_", " "), Text(printable(str("" if value is None else value))))
        console().print(table)


@agents.command()
@agent_argument
@_model_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@gateway_option
@json_option
def delete(agent: str, gateway: str, model: str, yes: bool, as_json: bool) -> None:
    """Erase an agent for good: what it was told, and its KV. A terminal is asked before."""
    if sys.stdin.isatty() and not yes:
        click.confirm(f"Erase {printable(agent)} on {model or 'all models'} for good?", abort=True)

    async def question(channel: grpc.aio.Channel) -> agent_pb2.DeleteAgentResponse:
        stub = agent_pb2_grpc.AgentServiceStub(channel)
        request = agent_pb2.DeleteAgentRequest(key=types_pb2.AgentKey(agent_id=agent, model_id=model))
        return await retrying(lambda: stub.DeleteAgent(request))

    gone = ask(gateway, question)
    if as_json:
        write_json({"deleted": gone.deleted, "freed_bytes": gone.freed_bytes})
    else:
        memories = "1 memory" if gone.deleted == 1 else f"{gone.deleted} memories"
        click.echo(f"erased {memories} of {printable(agent)}, freed {byte_size(gone.freed_bytes)}")


async def find(channel: grpc.aio.Channel, agent_id: str = "", model_id: str = "") -> list[agent_pb2.Agent]:
    """The agents that match, over all pages; empty means all."""
    stub = agent_pb2_grpc.AgentServiceStub(channel)
    found: list[agent_pb2.Agent] = []
    request = agent_pb2.ListAgentsRequest(agent_id=agent_id, model_id=model_id)
    while True:
        page = await retrying(lambda: stub.ListAgents(request))
        found += page.agents
        request.page_token = page.next_page_token
        if not page.next_page_token:
            return found


def as_dict(agent: agent_pb2.Agent) -> dict[str, Any]:
    """An agent as --json writes it."""
    return {
        "agent_id": agent.key.agent_id,
        "model_id": agent.key.model_id,
        "uid": agent.version.uid,
        "version": agent.version.version,
        "tokens": agent.tokens,
        "turns": agent.turns,
        "context_remaining": agent.context_remaining if agent.HasField("context_remaining") else None,
        "tier": tier_name(agent.tier),
        "warm_bytes": agent.warm_bytes,
        "text_bytes": agent.text_bytes,
        "blocks": agent.blocks,
        "pinned": agent.pinned,
        "create_time": iso_time(agent.create_time),
        "update_time": iso_time(agent.update_time),
    }


def agents_table(found: Sequence[agent_pb2.Agent], now: datetime) -> Table:
    """The agents for people."""
    table = Table(box=None, pad_edge=False)
    for name in ("agent", "model"):
        table.add_column(name, overflow="fold")
    for name in ("version", "tokens", "turns"):
        table.add_column(name, justify="right")
    table.add_column("tier")
    table.add_column("on disk", justify="right")
    table.add_column("last turn")
    for agent in found:
        table.add_row(
            Text(printable(agent.key.agent_id)),
            Text(printable(agent.key.model_id)),
            str(agent.version.version),
            f"{agent.tokens:,}",
            str(agent.turns),
            tier_name(agent.tier),
            byte_size(agent.warm_bytes),
            age(agent.update_time, now),
        )
    return table


def _list(gateway: str, model: str, *, as_json: bool) -> None:
    found = ask(gateway, lambda channel: find(channel, model_id=model))
    if as_json:
        write_json([as_dict(agent) for agent in found])
    elif found:
        console().print(agents_table(found, datetime.now(UTC)))
    else:
        click.echo("no agents yet; `agentmem chat NAME` makes one")
