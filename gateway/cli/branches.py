"""`agentmem agents fork`, `snapshot`, `restore` and the like: what changes an agent without a turn, and probing one."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import click
import grpc
from rich.table import Table
from rich.text import Text

from agentmem.keys import automatic_snapshot
from agentmem.sizes import byte_size
from agentmem.v1 import agent_pb2, agent_pb2_grpc, types_pb2
from gateway.cli import agents
from gateway.cli.client import agent_argument, ask, gateway_option, json_option, not_empty, retrying, write_json
from gateway.cli.contract_json import as_dict
from gateway.cli.text import console, counted, iso_time, printable
from gateway.cli.turn_line import match_name
from gateway.enums import short_name
from gateway.memory_report import tier_name

_T = TypeVar("_T")
_Call = Callable[[Any, types_pb2.AgentKey], Awaitable[_T]]

_model_option = click.option("--model", default="", help="Which of the agent's memories, if there are several.")
_POLICIES = {
    "trim": "drop its oldest turns when its memory outgrows the context",
    "summarize": "replace its oldest turns by a note when its memory outgrows the context",
    "refuse": "refuse turns when its memory outgrows the context",
}
_name_argument = click.argument("name", callback=not_empty("the snapshot's name must not be empty"))


def _on_memory(gateway: str, agent: str, model: str, call: _Call[_T]) -> _T:
    """The answer of an RPC about an agent's only memory, or that on `model`."""

    async def question(channel: grpc.aio.Channel) -> _T:
        key = await agents.only_memory(channel, agent, model)
        stub = agent_pb2_grpc.AgentServiceStub(channel)
        return await retrying(lambda: call(stub, key))

    return ask(gateway, question)


@click.command()
@agent_argument
@click.argument("new", callback=not_empty("the new agent's name must not be empty"))
@click.option("--at-version", type=click.IntRange(1), help="The state of this version, if it is still kept.")
@click.option("--tokens", type=click.IntRange(1), help="Only the first so many tokens.")
@_model_option
@gateway_option
@json_option
def fork(
    agent: str, new: str, at_version: int | None, tokens: int | None, model: str, gateway: str, as_json: bool
) -> None:
    """Make a second agent, NEW, with AGENT's memory. Neither sees what the other is told from then on."""

    def call(stub: Any, key: types_pb2.AgentKey) -> Any:
        request = agent_pb2.ForkAgentRequest(key=key, new_agent_id=new, at_version=at_version, keep_tokens=tokens)
        return stub.ForkAgent(request)

    made: agent_pb2.Agent = _on_memory(gateway, agent, model, call).agent
    _tell(made, f"{printable(new)} has the memory of {printable(agent)}: {made.tokens:,} tokens", as_json=as_json)


@click.command()
@agent_argument
@_name_argument
@_model_option
@gateway_option
@json_option
def snapshot(agent: str, name: str, model: str, gateway: str, as_json: bool) -> None:
    """Keep AGENT's present state under NAME."""

    def call(stub: Any, key: types_pb2.AgentKey) -> Any:
        return stub.CreateSnapshot(agent_pb2.CreateSnapshotRequest(key=key, name=name))

    made: agent_pb2.Snapshot = _on_memory(gateway, agent, model, call).snapshot
    if as_json:
        write_json(_snapshot_as_dict(made))
    else:
        click.echo(
            f"kept {printable(agent)} as {printable(name)}: version {made.version.version}, {made.tokens:,} tokens"
        )


@click.command()
@agent_argument
@click.option("--delete", "unwanted", metavar="NAME", help="Erase this one, and what only it has kept.")
@_model_option
@gateway_option
@json_option
def snapshots(agent: str, unwanted: str | None, model: str, gateway: str, as_json: bool) -> None:
    """List AGENT's snapshots, newest first."""

    async def delete(stub: Any, key: types_pb2.AgentKey) -> None:
        await stub.DeleteSnapshot(agent_pb2.DeleteSnapshotRequest(key=key, name=unwanted or ""))

    async def call(stub: Any, key: types_pb2.AgentKey) -> list[agent_pb2.Snapshot]:
        found: list[agent_pb2.Snapshot] = []
        request = agent_pb2.ListSnapshotsRequest(key=key)
        while True:
            page = await stub.ListSnapshots(request)
            found += page.snapshots
            request.page_token = page.next_page_token
            if not page.next_page_token:
                return found

    if unwanted is not None:
        _on_memory(gateway, agent, model, delete)
    kept = _on_memory(gateway, agent, model, call)
    if as_json:
        write_json([_snapshot_as_dict(each) for each in kept])
    elif kept:
        console().print(snapshots_table(kept))
    else:
        click.echo(f"{printable(agent)} has no snapshots; `agentmem agents snapshot` makes one")


@click.command()
@agent_argument
@_name_argument
@_model_option
@gateway_option
@json_option
def restore(agent: str, name: str, model: str, gateway: str, as_json: bool) -> None:
    """Make AGENT what it was in the snapshot NAME. What it has now stays as an automatic snapshot."""

    def call(stub: Any, key: types_pb2.AgentKey) -> Any:
        return stub.RestoreSnapshot(agent_pb2.RestoreSnapshotRequest(key=key, name=name))

    found: agent_pb2.Agent = _on_memory(gateway, agent, model, call).agent
    _tell(found, f"{printable(agent)} is as in {printable(name)}: {found.tokens:,} tokens", as_json=as_json)


@click.command()
@agent_argument
@click.argument("tokens", type=click.IntRange(0))
@_model_option
@gateway_option
@json_option
def trim(agent: str, tokens: int, model: str, gateway: str, as_json: bool) -> None:
    """Drop AGENT's memory behind its first TOKENS tokens. What it was stays as an automatic snapshot."""

    async def call(stub: Any, key: types_pb2.AgentKey) -> tuple[agent_pb2.Agent, agent_pb2.Agent]:
        before = (await stub.GetAgent(agent_pb2.GetAgentRequest(key=key))).agent
        version = before.version.version
        request = agent_pb2.TrimAgentRequest(key=key, keep_tokens=tokens, if_version=version)
        return before, (await stub.TrimAgent(request)).agent

    before, after = _on_memory(gateway, agent, model, call)
    told = f"{printable(agent)} has {counted(after.tokens, 'token')}"
    if after.version != before.version:
        told += f" of {before.tokens:,}; the snapshot {automatic_snapshot(before.version.version)} keeps what it had"
    _tell(after, told, as_json=as_json)


@click.command()
@agent_argument
@_model_option
@gateway_option
@json_option
def pin(agent: str, model: str, gateway: str, as_json: bool) -> None:
    """Keep AGENT's KV on disk, whoever needs room."""
    _pin(agent, model, gateway, pinned=True, as_json=as_json)


@click.command()
@agent_argument
@_model_option
@gateway_option
@json_option
def unpin(agent: str, model: str, gateway: str, as_json: bool) -> None:
    """Let AGENT's KV make room on disk again."""
    _pin(agent, model, gateway, pinned=False, as_json=as_json)


@click.command()
@agent_argument
@click.argument("message", callback=not_empty("the message must not be empty"))
@_model_option
@gateway_option
@json_option
def probe(agent: str, message: str, model: str, gateway: str, as_json: bool) -> None:
    """Show what a turn with MESSAGE would reuse of AGENT's memory, and from where. Nothing is changed."""

    def call(stub: Any, key: types_pb2.AgentKey) -> Any:
        said = types_pb2.Messages(messages=[types_pb2.ChatMessage(role="user", content=message)])
        return stub.ProbeAgent(agent_pb2.ProbeAgentRequest(key=key, append=types_pb2.Append(messages=said)))

    answer: agent_pb2.ProbeAgentResponse = _on_memory(gateway, agent, model, call)
    report, trim = answer.cache, answer.context_trim if answer.HasField("context_trim") else None
    if as_json:
        write_json(as_dict(report) | ({"context_trim": as_dict(trim)} if trim is not None else {}))
        return
    tiers = ", ".join(f"{tier_name(part.tier)} {part.tokens:,}" for part in report.cached) or "none"
    reused = sum(part.tokens for part in report.cached)
    parts = [match_name(report).upper(), f"would reuse {reused:,} of {report.prompt_tokens:,} tokens ({tiers})"]
    if report.load_bytes:
        parts.append(f"and read {byte_size(report.load_bytes)}")
    if missed := short_name(types_pb2.MissReason.DESCRIPTOR, report.miss_reason):
        parts.append(f"missed: {missed}")
    if trim is not None:
        turns = counted(trim.dropped_turns, "turn")
        parts.append(f"would drop its oldest {turns} ({trim.dropped_tokens:,} tokens) to fit the context")
    click.echo(" · ".join(parts))


@click.command("context-policy")
@agent_argument
@click.argument("policy", type=click.Choice(_POLICIES))
@_model_option
@gateway_option
@json_option
def context_policy(agent: str, policy: str, model: str, gateway: str, as_json: bool) -> None:
    """Set what AGENT does when its memory outgrows the model's context."""
    value = types_pb2.ContextPolicy.Value(f"CONTEXT_POLICY_{policy.upper()}")

    def call(stub: Any, key: types_pb2.AgentKey) -> Any:
        return stub.SetContextPolicy(agent_pb2.SetContextPolicyRequest(key=key, context_policy=value))

    found: agent_pb2.Agent = _on_memory(gateway, agent, model, call).agent
    _tell(found, f"{printable(agent)} will {_POLICIES[policy]}", as_json=as_json)


def _pin(agent: str, model: str, gateway: str, *, pinned: bool, as_json: bool) -> None:
    def call(stub: Any, key: types_pb2.AgentKey) -> Any:
        return stub.PinAgent(agent_pb2.PinAgentRequest(key=key, pinned=pinned))

    found: agent_pb2.Agent = _on_memory(gateway, agent, model, call).agent
    _tell(found, f"{printable(agent)} is {'pinned' if pinned else 'not pinned'}", as_json=as_json)


def _tell(agent: agent_pb2.Agent, line: str, *, as_json: bool) -> None:
    if as_json:
        write_json(agents.as_dict(agent))
    else:
        click.echo(line)


def _snapshot_as_dict(snapshot: agent_pb2.Snapshot) -> dict[str, Any]:
    return {
        "name": snapshot.name,
        "version": snapshot.version.version,
        "tokens": snapshot.tokens,
        "automatic": snapshot.automatic,
        "create_time": iso_time(snapshot.create_time),
    }


def snapshots_table(kept: list[agent_pb2.Snapshot]) -> Table:
    """The snapshots for people."""
    table = Table(box=None, pad_edge=False)
    table.add_column("snapshot", overflow="fold")
    for name in ("version", "tokens"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("made", no_wrap=True)
    for each in kept:
        made = iso_time(each.create_time) or ""
        table.add_row(Text(printable(each.name)), str(each.version.version), f"{each.tokens:,}", made)
    return table
