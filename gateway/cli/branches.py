"""`agentmem agents fork`, `snapshot`, `restore` and the like: what changes an agent without a turn, and probing one."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce, wraps
from typing import Any

import click
import grpc
from rich.table import Table

from agentmem.sizes import byte_size
from agentmem.v1 import agent_pb2, agent_pb2_grpc, types_pb2
from agentmem.validation import automatic_snapshot
from agentmem.words import short_name, tier_name
from gateway.cli.agents import agent_dict, only_memory
from gateway.cli.client import Client, agent_argument, all_pages, client_options, not_empty, retrying
from gateway.cli.text import FOLD, LINE, RIGHT, as_dict, counted, flattened, iso_time, printable, table
from gateway.cli.turns import match_name

_POLICIES = {
    "trim": "drop its oldest turns when its memory outgrows the context",
    "summarize": "replace its oldest turns by a note when its memory outgrows the context",
    "refuse": "refuse turns when its memory outgrows the context",
}
_name_argument = click.argument("name", callback=not_empty("the snapshot's name must not be empty"))


@dataclass(frozen=True)
class Memory:
    """An agent's memory on `model`, or its only one. `str()` is the agent's name, printable."""

    client: Client
    agent: str
    model: str

    def __str__(self) -> str:
        return printable(self.agent)

    def ask(self, rpc: str, **fields: Any) -> Any:
        """Return the response of an RPC of AgentService about it. Raises ClickException."""

        async def question(channel: grpc.aio.Channel) -> Any:
            key = await only_memory(channel, self.agent, self.model)
            request = getattr(agent_pb2, f"{rpc}Request")(key=key, **fields)
            call = getattr(agent_pb2_grpc.AgentServiceStub(channel), rpc)
            return await retrying(lambda: call(request))

        return self.client.ask(question)


def _command(name: str, *parameters: Callable[..., Any]) -> Callable[[Callable[..., None]], click.Command]:
    """Make a command about a memory, which its function gets first, with further arguments and options."""

    def made(function: Callable[..., None]) -> click.Command:
        @wraps(function)
        def command(client: Client, agent: str, model: str, **given: Any) -> None:
            function(Memory(client, agent, model), **given)

        model_option = click.option("--model", default="", help="Which of the agent's memories, if there are several.")
        decorators: list[Callable[..., Any]] = [agent_argument, *parameters, model_option, client_options]
        return click.command(name)(reduce(lambda made, decorator: decorator(made), reversed(decorators), command))

    return made


@_command(
    "fork",
    click.argument("new", callback=not_empty("the new agent's name must not be empty")),
    click.option("--at-version", type=click.IntRange(1), help="The state of this version, if it is still kept."),
    click.option("--tokens", "keep_tokens", type=click.IntRange(1), help="Only the first so many tokens."),
)
def fork(memory: Memory, new: str, at_version: int | None, keep_tokens: int | None) -> None:
    """Make a second agent, NEW, with AGENT's memory. Neither sees what the other is told from then on."""
    made = memory.ask("ForkAgent", new_agent_id=new, at_version=at_version, keep_tokens=keep_tokens).agent
    memory.client.show(agent_dict(made), f"{printable(new)} has the memory of {memory}: {made.tokens:,} tokens")


@_command("snapshot", _name_argument)
def snapshot(memory: Memory, name: str) -> None:
    """Keep AGENT's present state under NAME."""
    made = memory.ask("CreateSnapshot", name=name).snapshot
    size = f"version {made.version.version}, {made.tokens:,} tokens"
    memory.client.show(snapshot_dict(made), f"kept {memory} as {printable(name)}: {size}")


@_command(
    "snapshots", click.option("--delete", "unwanted", metavar="NAME", help="Erase this one, and what only it has kept.")
)
def snapshots(memory: Memory, unwanted: str | None) -> None:
    """List AGENT's snapshots, newest first."""

    async def question(channel: grpc.aio.Channel) -> list[agent_pb2.Snapshot]:
        request = agent_pb2.ListSnapshotsRequest(key=await only_memory(channel, memory.agent, memory.model))
        return await all_pages(agent_pb2_grpc.AgentServiceStub(channel).ListSnapshots, request, "snapshots")

    if unwanted is not None:
        memory.ask("DeleteSnapshot", name=unwanted)
    kept = memory.client.ask(question)
    none = f"{memory} has no snapshots; `agentmem agents snapshot` makes one"
    memory.client.show(list(map(snapshot_dict, kept)), snapshots_table(kept) if kept else none)


@_command("restore", _name_argument)
def restore(memory: Memory, name: str) -> None:
    """Make AGENT what it was in the snapshot NAME. What it has now stays as an automatic snapshot."""
    found = memory.ask("RestoreSnapshot", name=name).agent
    memory.client.show(agent_dict(found), f"{memory} is as in {printable(name)}: {found.tokens:,} tokens")


@_command("trim", click.argument("tokens", type=click.IntRange(0)))
def trim(memory: Memory, tokens: int) -> None:
    """Drop AGENT's memory behind its first TOKENS tokens. What it was stays as an automatic snapshot."""

    async def question(channel: grpc.aio.Channel) -> tuple[agent_pb2.Agent, agent_pb2.Agent]:
        key = await only_memory(channel, memory.agent, memory.model)
        stub = agent_pb2_grpc.AgentServiceStub(channel)

        async def attempt() -> tuple[agent_pb2.Agent, agent_pb2.Agent]:
            before = (await stub.GetAgent(agent_pb2.GetAgentRequest(key=key))).agent
            version, revision = before.version.version, before.version.revision
            request = agent_pb2.TrimAgentRequest(key=key, keep_tokens=tokens, if_version=version, if_revision=revision)
            return before, (await stub.TrimAgent(request)).agent

        return await retrying(attempt)

    before, after = memory.client.ask(question)
    line = f"{memory} has {counted(after.tokens, 'token')}"
    if after.version != before.version:
        line += f" of {before.tokens:,}; the snapshot {automatic_snapshot(before.version.version)} keeps what it had"
    memory.client.show(agent_dict(after), line)


@_command("pin")
def pin(memory: Memory) -> None:
    """Keep AGENT's KV on disk, whoever needs room."""
    memory.client.show(agent_dict(memory.ask("PinAgent", pinned=True).agent), f"{memory} is pinned")


@_command("unpin")
def unpin(memory: Memory) -> None:
    """Let AGENT's KV make room on disk again."""
    memory.client.show(agent_dict(memory.ask("PinAgent", pinned=False).agent), f"{memory} is not pinned")


@_command("probe", click.argument("message", callback=not_empty("the message must not be empty")))
def probe(memory: Memory, message: str) -> None:
    """Show what a turn with MESSAGE would reuse of AGENT's memory, and from where. Nothing is changed."""
    said = types_pb2.Messages(messages=[types_pb2.ChatMessage(role="user", content=message)])
    answer: agent_pb2.ProbeAgentResponse = memory.ask("ProbeAgent", append=types_pb2.Append(messages=said))
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
    trimmed = {"context_trim": as_dict(trim)} if trim is not None else {}
    memory.client.show(as_dict(report) | trimmed, " · ".join(parts))


@_command("context-policy", click.argument("policy", type=click.Choice(_POLICIES)))
def context_policy(memory: Memory, policy: str) -> None:
    """Set what AGENT does when its memory outgrows the model's context."""
    value = types_pb2.ContextPolicy.Value(f"CONTEXT_POLICY_{policy.upper()}")
    found = memory.ask("SetContextPolicy", context_policy=value).agent
    memory.client.show(agent_dict(found), f"{memory} will {_POLICIES[policy]}")


def snapshot_dict(snapshot: agent_pb2.Snapshot) -> dict[str, Any]:
    """Return a snapshot as --json writes it."""
    return flattened(snapshot, "key", "version")


def snapshots_table(kept: list[agent_pb2.Snapshot]) -> Table:
    """Return the snapshots for people."""
    columns = {"snapshot": FOLD, "version": RIGHT, "tokens": RIGHT, "made": LINE}
    rows = ((one.name, str(one.version.version), f"{one.tokens:,}", iso_time(one.create_time) or "") for one in kept)
    return table(columns, rows)
