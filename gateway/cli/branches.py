"""`agentmem agents fork`, `snapshot`, `restore` and the like: what changes an agent without a turn, and probing one."""

from typing import Any

import click
import grpc
from rich.table import Table

from agentmem.sizes import byte_size
from agentmem.v1 import agent_pb2, agent_pb2_grpc, types_pb2
from agentmem.validation import automatic_snapshot
from gateway.api.reports import short_name, tier_name
from gateway.cli.agents import agent_dict, only_memory
from gateway.cli.client import Client, agent_argument, all_pages, client_options, not_empty, retrying
from gateway.cli.text import (
    FOLD,
    LINE,
    RIGHT,
    as_dict,
    console,
    counted,
    flattened,
    iso_time,
    printable,
    table,
    write_json,
)
from gateway.cli.turns import match_name

_POLICIES = {
    "trim": "drop its oldest turns when its memory outgrows the context",
    "summarize": "replace its oldest turns by a note when its memory outgrows the context",
    "refuse": "refuse turns when its memory outgrows the context",
}
_model_option = click.option("--model", default="", help="Which of the agent's memories, if there are several.")
_name_argument = click.argument("name", callback=not_empty("the snapshot's name must not be empty"))


def _ask(client: Client, agent: str, model: str, rpc: str, **fields: Any) -> Any:
    """Return the response of an RPC of AgentService about an agent's only memory, or that on `model`."""

    async def question(channel: grpc.aio.Channel) -> Any:
        key = await only_memory(channel, agent, model)
        request = getattr(agent_pb2, f"{rpc}Request")(key=key, **fields)
        call = getattr(agent_pb2_grpc.AgentServiceStub(channel), rpc)
        return await retrying(lambda: call(request))

    return client.ask(question)


@click.command()
@agent_argument
@click.argument("new", callback=not_empty("the new agent's name must not be empty"))
@click.option("--at-version", type=click.IntRange(1), help="The state of this version, if it is still kept.")
@click.option("--tokens", type=click.IntRange(1), help="Only the first so many tokens.")
@_model_option
@client_options
def fork(client: Client, agent: str, new: str, at_version: int | None, tokens: int | None, model: str) -> None:
    """Make a second agent, NEW, with AGENT's memory. Neither sees what the other is told from then on."""
    fields = {"new_agent_id": new, "at_version": at_version, "keep_tokens": tokens}
    made = _ask(client, agent, model, "ForkAgent", **fields).agent
    client.show(agent_dict(made), f"{printable(new)} has the memory of {printable(agent)}: {made.tokens:,} tokens")


@click.command()
@agent_argument
@_name_argument
@_model_option
@client_options
def snapshot(client: Client, agent: str, name: str, model: str) -> None:
    """Keep AGENT's present state under NAME."""
    made = _ask(client, agent, model, "CreateSnapshot", name=name).snapshot
    size = f"version {made.version.version}, {made.tokens:,} tokens"
    client.show(flattened(made, "key", "version"), f"kept {printable(agent)} as {printable(name)}: {size}")


@click.command()
@agent_argument
@click.option("--delete", "unwanted", metavar="NAME", help="Erase this one, and what only it has kept.")
@_model_option
@client_options
def snapshots(client: Client, agent: str, unwanted: str | None, model: str) -> None:
    """List AGENT's snapshots, newest first."""

    async def question(channel: grpc.aio.Channel) -> list[agent_pb2.Snapshot]:
        request = agent_pb2.ListSnapshotsRequest(key=await only_memory(channel, agent, model))
        return await all_pages(agent_pb2_grpc.AgentServiceStub(channel).ListSnapshots, request, "snapshots")

    if unwanted is not None:
        _ask(client, agent, model, "DeleteSnapshot", name=unwanted)
    kept = client.ask(question)
    if client.as_json:
        write_json([flattened(each, "key", "version") for each in kept])
    elif kept:
        console().print(snapshots_table(kept))
    else:
        click.echo(f"{printable(agent)} has no snapshots; `agentmem agents snapshot` makes one")


@click.command()
@agent_argument
@_name_argument
@_model_option
@client_options
def restore(client: Client, agent: str, name: str, model: str) -> None:
    """Make AGENT what it was in the snapshot NAME. What it has now stays as an automatic snapshot."""
    found = _ask(client, agent, model, "RestoreSnapshot", name=name).agent
    client.show(agent_dict(found), f"{printable(agent)} is as in {printable(name)}: {found.tokens:,} tokens")


@click.command()
@agent_argument
@click.argument("tokens", type=click.IntRange(0))
@_model_option
@client_options
def trim(client: Client, agent: str, tokens: int, model: str) -> None:
    """Drop AGENT's memory behind its first TOKENS tokens. What it was stays as an automatic snapshot."""

    async def question(channel: grpc.aio.Channel) -> tuple[agent_pb2.Agent, agent_pb2.Agent]:
        key = await only_memory(channel, agent, model)
        stub = agent_pb2_grpc.AgentServiceStub(channel)

        async def attempt() -> tuple[agent_pb2.Agent, agent_pb2.Agent]:
            before = (await stub.GetAgent(agent_pb2.GetAgentRequest(key=key))).agent
            version = before.version.version
            request = agent_pb2.TrimAgentRequest(key=key, keep_tokens=tokens, if_version=version)
            return before, (await stub.TrimAgent(request)).agent

        return await retrying(attempt)

    before, after = client.ask(question)
    line = f"{printable(agent)} has {counted(after.tokens, 'token')}"
    if after.version != before.version:
        line += f" of {before.tokens:,}; the snapshot {automatic_snapshot(before.version.version)} keeps what it had"
    client.show(agent_dict(after), line)


@click.command()
@agent_argument
@_model_option
@client_options
def pin(client: Client, agent: str, model: str) -> None:
    """Keep AGENT's KV on disk, whoever needs room."""
    client.show(agent_dict(_ask(client, agent, model, "PinAgent", pinned=True).agent), f"{printable(agent)} is pinned")


@click.command()
@agent_argument
@_model_option
@client_options
def unpin(client: Client, agent: str, model: str) -> None:
    """Let AGENT's KV make room on disk again."""
    found = _ask(client, agent, model, "PinAgent", pinned=False).agent
    client.show(agent_dict(found), f"{printable(agent)} is not pinned")


@click.command()
@agent_argument
@click.argument("message", callback=not_empty("the message must not be empty"))
@_model_option
@client_options
def probe(client: Client, agent: str, message: str, model: str) -> None:
    """Show what a turn with MESSAGE would reuse of AGENT's memory, and from where. Nothing is changed."""
    said = types_pb2.Messages(messages=[types_pb2.ChatMessage(role="user", content=message)])
    answer: agent_pb2.ProbeAgentResponse = _ask(
        client, agent, model, "ProbeAgent", append=types_pb2.Append(messages=said)
    )
    report, trim = answer.cache, answer.context_trim if answer.HasField("context_trim") else None
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
    client.show(as_dict(report) | ({"context_trim": as_dict(trim)} if trim is not None else {}), " · ".join(parts))


@click.command("context-policy")
@agent_argument
@click.argument("policy", type=click.Choice(_POLICIES))
@_model_option
@client_options
def context_policy(client: Client, agent: str, policy: str, model: str) -> None:
    """Set what AGENT does when its memory outgrows the model's context."""
    value = types_pb2.ContextPolicy.Value(f"CONTEXT_POLICY_{policy.upper()}")
    found = _ask(client, agent, model, "SetContextPolicy", context_policy=value).agent
    client.show(agent_dict(found), f"{printable(agent)} will {_POLICIES[policy]}")


def snapshots_table(kept: list[agent_pb2.Snapshot]) -> Table:
    """Return the snapshots for people."""
    columns = {"snapshot": FOLD, "version": RIGHT, "tokens": RIGHT, "made": LINE}
    rows = ((one.name, str(one.version.version), f"{one.tokens:,}", iso_time(one.create_time) or "") for one in kept)
    return table(columns, rows)
