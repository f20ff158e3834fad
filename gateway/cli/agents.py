"""`agentmem agents`: whose memory there is, what is in it, and erasing it."""

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click
import grpc
from rich.table import Table
from rich.text import Text

from agentmem.errors import FailedPrecondition, NotFound
from agentmem.sizes import byte_size
from agentmem.v1 import agent_pb2, agent_pb2_grpc, types_pb2
from gateway.cli.client import agent_argument, ask, gateway_option, hand_down, json_option, retrying, write_json
from gateway.cli.history import turn_as_dict, turn_text, turns_of
from gateway.cli.lazy import LazyCommand, LazyGroup
from gateway.cli.text import age, console, counted, iso_time, printable
from gateway.enums import short_name
from gateway.identity import is_anonymous
from gateway.memory_report import tier_name

_model_option = click.option("--model", default="", help="Only on this model; without it on all.")


_FURTHER = {
    "export": LazyCommand(
        "gateway.cli.transfers:export_agent", "Write AGENT's memory to FILE: what it was told, and its KV."
    ),
    "import": LazyCommand(
        "gateway.cli.transfers:import_agent", "Make an agent of FILE, named AGENT or as in the file."
    ),
    "fork": LazyCommand("gateway.cli.branches:fork", "Make a second agent, NEW, with AGENT's memory."),
    "snapshot": LazyCommand("gateway.cli.branches:snapshot", "Keep AGENT's present state under NAME."),
    "snapshots": LazyCommand("gateway.cli.branches:snapshots", "List AGENT's snapshots, newest first."),
    "restore": LazyCommand("gateway.cli.branches:restore", "Make AGENT what it was in the snapshot NAME."),
    "trim": LazyCommand("gateway.cli.branches:trim", "Drop AGENT's memory behind its first TOKENS tokens."),
    "context-policy": LazyCommand(
        "gateway.cli.branches:context_policy", "Set what AGENT does when its memory outgrows the model's context."
    ),
    "pin": LazyCommand("gateway.cli.branches:pin", "Keep AGENT's KV on disk, whoever needs room."),
    "unpin": LazyCommand("gateway.cli.branches:unpin", "Let AGENT's KV make room on disk again."),
    "probe": LazyCommand(
        "gateway.cli.branches:probe", "Show what a turn with MESSAGE would reuse of AGENT's memory, and from where."
    ),
}


_all_option = click.option(
    "--all", "everyone", is_flag=True, help="Also those without a name, which are found by their conversation."
)


@click.group(cls=LazyGroup, lazy=_FURTHER, invoke_without_command=True)
@_all_option
@gateway_option
@json_option
@click.pass_context
def agents(context: click.Context, gateway: str, everyone: bool, as_json: bool) -> None:
    """Show, branch, move or erase agents. Without a command: list them."""
    if hand_down(context, gateway, as_json=as_json, everyone=everyone):
        _list(gateway, "", everyone=everyone, as_json=as_json)


@agents.command("list")
@_model_option
@_all_option
@gateway_option
@json_option
def list_agents(gateway: str, model: str, everyone: bool, as_json: bool) -> None:
    """List the agents."""
    _list(gateway, model, everyone=everyone, as_json=as_json)


@agents.command()
@agent_argument
@_model_option
@click.option("--text", is_flag=True, help="Also what is in its memory, turn by turn.")
@gateway_option
@json_option
def show(agent: str, gateway: str, model: str, text: bool, as_json: bool) -> None:
    """Show one agent, on every model that it has a memory on."""

    async def question(channel: grpc.aio.Channel) -> list[tuple[agent_pb2.Agent, list[agent_pb2.Turn]]]:
        found = await find(channel, agent_id=agent, model_id=model)
        return [(one, await turns_of(channel, one.key) if text else []) for one in found]

    found = ask(gateway, question)
    if not found:
        raise click.ClickException(NotFound("agent", agent).message)
    if as_json:
        write_json([as_dict(one) | ({"history": list(map(turn_as_dict, said))} if text else {}) for one, said in found])
        return
    for one, said in found:
        table = Table(show_header=False, box=None)
        for name, value in as_dict(one).items():
            table.add_row(name.replace("_", " "), Text(printable(str("" if value is None else value))))
        console().print(table)
        for turn in said:
            click.echo(turn_text(turn))


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


async def only_memory(channel: grpc.aio.Channel, agent: str, model: str) -> types_pb2.AgentKey:
    """The key of an agent's memory on `model`, or of the only one.

    Raises NotFound, and FailedPrecondition where there are several.
    """
    found = await find(channel, agent, model)
    if not found:
        raise NotFound("agent", agent)
    if len(found) > 1:
        names = ", ".join(printable(each.key.model_id) for each in found)
        raise FailedPrecondition(f"{printable(agent)} has memories on {names}; name one with --model")
    return types_pb2.AgentKey(agent_id=agent, model_id=found[0].key.model_id)


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
        "context_policy": short_name(types_pb2.ContextPolicy.DESCRIPTOR, agent.context_policy),
        "template_time": agent.template_time or None,
        "create_time": iso_time(agent.create_time),
        "update_time": iso_time(agent.update_time),
    }


def agents_table(found: Sequence[agent_pb2.Agent], now: datetime) -> Table:
    """The agents for people."""
    table = Table(box=None, pad_edge=False)
    for name in ("agent", "model"):
        table.add_column(name, overflow="fold", min_width=len(name))
    for name in ("version", "tokens", "turns"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("tier", no_wrap=True)
    table.add_column("on disk", justify="right", no_wrap=True)
    table.add_column("last turn", no_wrap=True)
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


def _list(gateway: str, model: str, *, everyone: bool, as_json: bool) -> None:
    found = ask(gateway, lambda channel: find(channel, model_id=model))
    shown = [agent for agent in found if everyone or not is_anonymous(agent.key.agent_id)]
    if as_json:
        write_json([as_dict(agent) for agent in shown])
    elif shown:
        console().print(agents_table(shown, datetime.now(UTC)))
    elif not found:
        click.echo("no agents yet; `agentmem chat NAME` makes one")
    if hidden := len(found) - len(shown):
        click.echo(f"{counted(hidden, 'agent')} without a name not shown; --all shows them too", err=True)
