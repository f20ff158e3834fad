"""Agents' knowledge in late phases of a workflow: recall, leaks, and the work that it takes.

    agentmem bench working-memory [--agents 3 5 10 20] [--tokens 700] [--seed 1]

Facts are told, filler goes by, then everybody is asked for what it heard, for what only others heard, and for what
nobody was told. The same workflows run

    persistent     by RunWorkflow; also with a pool of four agents, and with worker and store killed midway
    re-prefilled   by the same program, each turn the whole chat, sent to a model that keeps nothing
    no memory      likewise, but each turn only the system text and the message

A leak is a value that the agent could not know. Exit status 1 for a leak, or a persistent run that did not recall all.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Coroutine, Sequence
from typing import Any

from rich.console import Console

from agentmem.channels import connect
from agentmem.v1 import inference_pb2_grpc
from benchmarks import options, results
from benchmarks.live import LiveStack, running
from benchmarks.tables import Table
from benchmarks.turns import chat
from benchmarks.working_memory.runs import perform
from benchmarks.working_memory.scenarios import Scenario, make_scenario
from benchmarks.working_memory.scores import Performance, differing, score
from benchmarks.working_memory.text import TextRun
from gateway.workflows.definition.parser import load

POOL_AGENTS = 4
KILL_IN = "talk-3"
_TOKENS = {3: 2400, 5: 1600, 10: 1000, 20: 700}
"""Filler by number of agents, so that all of it takes some minutes on two cores."""
_BLOCK = 256
_ANSWER = 64
PERSISTENT = ("persistent", "pool of 4", "killed")


class Comparison:
    def __init__(self, tokens: dict[int, int], seed: int) -> None:
        self.tokens = tokens
        self.scenarios = {agents: make_scenario(agents, each, seed) for agents, each in tokens.items()}
        self.scores: dict[str, dict[str, dict[str, Any]]] = {str(agents): {} for agents in tokens}
        self._persistent: dict[int, Performance] = {}

    def add(self, agents: int, way: str, performance: Performance) -> None:
        first = self._persistent.setdefault(agents, performance)
        found = score(self.scenarios[agents], performance) | {
            "filler_tokens": self.tokens[agents],
            "differing_texts": differing(first, performance),
        }
        self.scores[str(agents)][way] = found
        right = f"{found['recall']['right']} of {found['recall']['asked']} recalled, {len(found['leaks'])} leaks"
        Console().print(f"{agents} agents, {way}: {right}, {found['seconds']:.0f} s", style="dim")

    @property
    def crowded(self) -> list[int]:
        return [agents for agents in self.tokens if agents > POOL_AGENTS]

    def small_pool(self, agents: int, kv_bytes_per_token: int) -> int:
        """Return the bytes of a pool of four agents with the longest ledger of all but the judge."""
        blocks: int = -(-(self.scores[str(agents)]["persistent"]["longest_turn"] + _ANSWER) // _BLOCK)
        return POOL_AGENTS * blocks * _BLOCK * kv_bytes_per_token

    def mistakes(self) -> list[str]:
        found = []
        for agents, rows in self.scores.items():
            for way, row in rows.items():
                found += [f"{agents} agents, {way}: leak {leak}" for leak in row["leaks"]]
                if way in PERSISTENT:
                    found += [f"{agents} agents, {way}: miss {miss}" for miss in row["misses"]]
        return found


async def on_live_stack(comparison: Comparison, killed: Sequence[int]) -> int:
    """Run all three ways, and then those that are killed; return the bytes of a token's KV."""
    async with running() as stack:
        await warm_up(stack)
        for agents, scenario in comparison.scenarios.items():
            comparison.add(agents, "persistent", await timed(stack, perform(stack, scenario, f"persistent-{agents}")))
            for way, whole in (("re-prefilled", True), ("no memory", False)):
                comparison.add(agents, way, await timed(stack, by_text(stack, scenario, whole=whole)))
        for agents in killed:
            run = perform(stack, comparison.scenarios[agents], f"killed-{agents}", KILL_IN)
            comparison.add(agents, "killed", await run)
        return int((await stack.describe_model()).kv_bytes_per_token)


async def in_a_small_pool(comparison: Comparison, agents: int, kv_bytes_per_token: int) -> None:
    pool_bytes = comparison.small_pool(agents, kv_bytes_per_token)
    async with running(environment={"AGENTMEM_WORKER_POOL_BYTES": str(pool_bytes)}) as stack:
        await warm_up(stack)
        performance = await timed(stack, perform(stack, comparison.scenarios[agents], f"small-{agents}"))
    performance.notices["pool_bytes"] = pool_bytes
    comparison.add(agents, "pool of 4", performance)


async def timed(stack: LiveStack, run: Coroutine[Any, Any, Performance]) -> Performance:
    before = cpu_seconds(stack)
    performance = await run
    performance.notices["worker_cpu_seconds"] = cpu_seconds(stack) - before
    return performance


def cpu_seconds(stack: LiveStack) -> float:
    times = stack.process("worker").cpu_times()
    return float(times.user + times.system)


async def by_text(stack: LiveStack, scenario: Scenario, *, whole: bool) -> Performance:
    async with connect(stack.addresses["grpc"]) as channel:
        inference = inference_pb2_grpc.InferenceServiceStub(channel)
        return await TextRun(inference, load(json.dumps(scenario.definition), {}), stack.model, whole=whole).perform()


async def warm_up(stack: LiveStack) -> None:
    await stack.ask("warm-up", messages=chat([("user", "Hello.")]))


def tables(figures: dict[str, Any]) -> list[Table]:
    runs = []
    for agents, rows in figures["by_agents"].items():
        for way, row in rows.items():
            first = row["seconds_to_first_token"]
            scores = (f"{row[name]['right']} of {row[name]['asked']}" for name in ("recall", "never_told"))
            counts = (str(len(row["leaks"])), str(row["differing_texts"]), f"{row['prefill_tokens']:,}")
            times = (f"{first[name] * 1000:.0f} ms" for name in ("median", "p90"))
            cpu = f"{row['worker_cpu_seconds']:.0f} s" if "worker_cpu_seconds" in row else ""
            runs.append((f"{agents}, {way}", *scores, *counts, *times, f"{row['seconds']:.0f} s", cpu))
    columns = (
        *("agents, memory", "recalled", "unknown, and said so", "leaks", "other texts", "prompt tokens computed"),
        *("first token, median", "90 %", "all", "worker CPU"),
    )
    return [Table("Working memory, seconds of the worker's clock", columns, runs)]


async def main(arguments: argparse.Namespace) -> int:
    tokens = {each: arguments.tokens or _TOKENS.get(each, min(_TOKENS.values())) for each in arguments.agents}
    comparison, console = Comparison(tokens, arguments.seed), Console(width=170)
    killed = [each for each in arguments.agents if each in arguments.killed]
    kv_bytes_per_token = await on_live_stack(comparison, killed)
    for agents in comparison.crowded:
        await in_a_small_pool(comparison, agents, kv_bytes_per_token)
    figures = {"seed": arguments.seed, "kv_bytes_per_token": kv_bytes_per_token, "by_agents": comparison.scores}
    results.conclude(arguments.output, figures, tables(figures))
    mistakes = comparison.mistakes()
    for mistake in mistakes:
        console.print(f"WRONG  {mistake}", style="bold red")
    return 1 if mistakes else 0


if __name__ == "__main__":
    parser = options.parser(__doc__, "working-memory-demo-cpu")
    parser.add_argument("--agents", type=options.at_least(3), nargs="+", default=list(_TOKENS))
    parser.add_argument("--tokens", type=int, help="of filler in each agent's ledger (default: 2400 to 700)")
    parser.add_argument("--killed", type=int, nargs="*", default=[10], help="of --agents, those with a SIGKILL, too")
    parser.add_argument("--seed", type=int, default=1)
    sys.exit(asyncio.run(main(parser.parse_args())))
