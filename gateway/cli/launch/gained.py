"""Sums of what memory gave to the conversations of a name, from the reports of their turns in the ledger."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from agentmem import AsyncClient
from agentmem.v1 import agent_pb2
from agentmem.words import cached_tokens, conversation_name, hit
from gateway.cli.agents import find
from gateway.cli.text import counted

_ENOUGH: Final = 1024
"""Computed tokens of a turn that shows how fast prompts are computed; a short one's time is mostly other than that."""


@dataclass(frozen=True)
class Gained:
    """`seconds_saved` is None where no turn of the conversations shows how fast prompts are computed."""

    turns: int
    prompt_tokens: int
    reused_tokens: int
    seconds_saved: float | None

    def text(self) -> str:
        if not self.turns:
            return "no turns"
        shared, computed = hit(self.reused_tokens, self.prompt_tokens), self.prompt_tokens - self.reused_tokens
        saved = f", about {self.seconds_saved:,.1f} s saved" if self.seconds_saved else ""
        return f"{counted(self.turns, 'turn')}: cache hit {shared}, {computed:,} tokens computed{saved}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


async def last_turn(agentmem: AsyncClient, name: str) -> int:
    """Return when the name's last turn was committed, by the server's clock: nanoseconds since 1970, or 0."""
    return max((each.update_time.ToNanoseconds() for each in await _conversations(agentmem, name)), default=0)


async def gained(agentmem: AsyncClient, name: str, after: int) -> Gained:
    """Sum the turns that were committed after a time of `last_turn`."""
    reports: dict[tuple[int, str], agent_pb2.TurnReport] = {}  # a fork has those of its source, too
    for agent in await _conversations(agentmem, name):
        if agent.update_time.ToNanoseconds() > after:
            async for turn in agentmem.agent(agent.key.agent_id, model=agent.key.model_id).turns():
                if turn.raw.HasField("report"):
                    reports[turn.raw.create_time.ToNanoseconds(), turn.raw.request_id] = turn.raw.report
    new = [report for (created, _), report in reports.items() if created > after]
    return summed(new, seconds_per_token(reports.values()))


def seconds_per_token(reports: Iterable[agent_pb2.TurnReport]) -> float | None:
    """Return how long prompts took to compute, or None where none was long enough to show it."""
    computed, seconds = 0, 0.0
    for report in reports:
        if (new := report.usage.prompt_tokens - cached_tokens(report.usage)) >= _ENOUGH:
            computed, seconds = computed + new, seconds + report.timings.prefill.ToTimedelta().total_seconds()
    return seconds / computed if computed else None


def summed(reports: Sequence[agent_pb2.TurnReport], per_token: float | None) -> Gained:
    prompt = sum(report.usage.prompt_tokens for report in reports)
    reused = sum(cached_tokens(report.usage) for report in reports)
    restored = sum(report.timings.load.ToTimedelta().total_seconds() for report in reports)
    return Gained(len(reports), prompt, reused, None if per_token is None else max(0.0, reused * per_token - restored))


async def _conversations(agentmem: AsyncClient, name: str) -> list[agent_pb2.Agent]:
    return [each for each in await find(agentmem) if conversation_name(each.key.agent_id) == name]
