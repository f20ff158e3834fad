"""`agentmem agents fork`, `snapshot`, `probe` and the like."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import reduce, wraps
from typing import Any, TypeVar

import click
from rich.table import Table

from agentmem import AgentInfo, AsyncAgent, AsyncClient
from agentmem.client.inputs import Policy
from agentmem.console import FOLD, LINE, RIGHT, table
from agentmem.sizes import byte_size
from agentmem.v1 import agent_pb2, types_pb2
from agentmem.validation import automatic_snapshot
from agentmem.words import printable, short_name
from gateway.api.contract_json import to_json
from gateway.cli.agents import only_memory
from gateway.cli.client import NOT_EMPTY, Client, agent_argument, client_options
from gateway.cli.text import counted, iso_time
from gateway.cli.turns import cache_hit, match_name

_T = TypeVar("_T")
_POLICIES: dict[Policy, str] = {
    "trim": "drop its oldest turns when its memory outgrows the context",
    "summarize": "replace its oldest turns by a note when its memory outgrows the context",
    "refuse": "refuse turns when its memory outgrows the context",
}
_name_argument = click.argument("name", type=NOT_EMPTY)


@dataclass(frozen=True)
class Memory:
    client: Client
    agent: str
    model: str

    def __str__(self) -> str:
        return printable(self.agent)

    def ask(self, question: Callable[[AsyncAgent], Coroutine[Any, Any, _T]]) -> _T:
        async def asked(agentmem: AsyncClient) -> _T:
            return await question(await only_memory(agentmem, self.agent, self.model))

        return self.client.ask(asked)


def _command(name: str, *parameters: Callable[..., Any]) -> Callable[[Callable[..., None]], click.Command]:
    """Make a command whose function gets a Memory."""

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
    click.argument("new", type=NOT_EMPTY),
    click.option(
        "--at-version", type=click.IntRange(1), metavar="N", help="The state of this version, if it is still kept."
    ),
    click.option("--tokens", "keep_tokens", type=click.IntRange(1), metavar="N", help="Only the first so many tokens."),
)
def fork(memory: Memory, new: str, at_version: int | None, keep_tokens: int | None) -> None:
    """Make a second agent, NEW, with AGENT's memory. Later turns of one do not change the other."""

    async def question(agent: AsyncAgent) -> AgentInfo:
        return await (await agent.fork(new, at=at_version, keep_tokens=keep_tokens)).info()

    made = memory.ask(question).raw
    memory.client.show(to_json(made), f"{printable(new)} has the memory of {memory}: {made.tokens:,} tokens")


@_command("snapshot", _name_argument)
def snapshot(memory: Memory, name: str) -> None:
    """Keep AGENT's present state under NAME."""
    made = memory.ask(lambda agent: agent.snapshot(name)).raw
    size = f"version {made.version.version}, {made.tokens:,} tokens"
    memory.client.show(to_json(made), f"kept {memory} as {printable(name)}: {size}")


@_command(
    "snapshots",
    click.option("--delete", "unwanted", metavar="NAME", help="Delete this one, and what only it has kept."),
)
def snapshots(memory: Memory, unwanted: str | None) -> None:
    """List AGENT's snapshots, newest first."""

    async def question(agent: AsyncAgent) -> list[agent_pb2.Snapshot]:
        if unwanted is not None:
            await agent.delete_snapshot(unwanted)
        return [snapshot.raw async for snapshot in agent.snapshots()]

    kept = memory.ask(question)
    none = f"{memory} has no snapshots; `agentmem agents snapshot` makes one"
    memory.client.show(list(map(to_json, kept)), snapshots_table(kept) if kept else none)


@_command("restore", _name_argument)
def restore(memory: Memory, name: str) -> None:
    """Return AGENT to the snapshot NAME. The present state stays as an automatic snapshot."""
    found = memory.ask(lambda agent: agent.restore(name)).raw
    memory.client.show(to_json(found), f"{memory} is as in {printable(name)}: {found.tokens:,} tokens")


@_command("trim", click.argument("tokens", type=click.IntRange(0)))
def trim(memory: Memory, tokens: int) -> None:
    """Keep AGENT's first TOKENS tokens, and drop the rest. The previous state stays as an automatic snapshot."""

    async def question(agent: AsyncAgent) -> tuple[AgentInfo, AgentInfo]:
        before = await agent.info()
        return before, await agent.trim(tokens, only_if=before.version)

    before, after = memory.ask(question)
    line = f"{memory} has {counted(after.tokens, 'token')}"
    if after.version != before.version:
        line += f" of {before.tokens:,}; the snapshot {automatic_snapshot(before.version.version)} keeps what it had"
    memory.client.show(to_json(after.raw), line)


@_command("pin")
def pin(memory: Memory) -> None:
    """Protect AGENT's KV on disk from eviction."""
    memory.client.show(to_json(memory.ask(lambda agent: agent.pin()).raw), f"{memory} is pinned")


@_command("unpin")
def unpin(memory: Memory) -> None:
    """End the protection of AGENT's KV on disk."""
    memory.client.show(to_json(memory.ask(lambda agent: agent.pin(False)).raw), f"{memory} is not pinned")


@_command("probe", click.argument("message", type=NOT_EMPTY))
def probe(memory: Memory, message: str) -> None:
    """Show the cache hit of a turn with MESSAGE: what of AGENT's memory it would not compute. Nothing changes."""
    answer = memory.ask(lambda agent: agent.probe(message)).raw
    report, trim = answer.cache, answer.context_trim if answer.HasField("context_trim") else None
    parts = [match_name(report).upper(), cache_hit(report.cached, report.prompt_tokens)]
    if report.load_bytes:
        parts.append(f"reads {byte_size(report.load_bytes)}")
    if missed := short_name(types_pb2.MissReason.DESCRIPTOR, report.miss_reason):
        parts.append(f"missed: {missed}")
    if trim is not None:
        turns = counted(trim.dropped_turns, "turn")
        parts.append(f"would drop its oldest {turns} ({trim.dropped_tokens:,} tokens) to fit the context")
    memory.client.show(to_json(answer), " · ".join(parts))


@_command("context-policy", click.argument("policy", type=click.Choice(_POLICIES)))
def context_policy(memory: Memory, policy: Policy) -> None:
    """Set what AGENT does when its memory outgrows the model's context."""
    found = memory.ask(lambda agent: agent.set_context_policy(policy)).raw
    memory.client.show(to_json(found), f"{memory} will {_POLICIES[policy]}")


def snapshots_table(kept: list[agent_pb2.Snapshot]) -> Table:
    columns = {"snapshot": FOLD, "version": RIGHT, "tokens": RIGHT, "made": LINE}
    rows = ((one.name, str(one.version.version), f"{one.tokens:,}", iso_time(one.create_time) or "") for one in kept)
    return table(columns, rows)
