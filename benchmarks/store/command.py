"""The cache store by itself: a real process, asked over its socket, one call at a time.

    agentmem bench store [--agents 1000]

With so many agents of 4096 tokens and 16 blocks: the start, memory while ListAgents pages through all, latencies of
RPCs, and bytes written per turn, with files of the geometry of Llama 3.1 8B in Q4. Needs Linux.
"""

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from agentmem.kv.blockfile import BLOCK_TOKENS
from agentmem.v1 import agent_pb2
from agentmem.v1 import cache_store_pb2 as pb
from benchmarks import options, results
from benchmarks.store.agents import LLAMA, TINY, Agent, key, tokens_of, turn
from benchmarks.store.process import StoreProcess, serving, written_bytes
from benchmarks.tables import Table

TOKENS, PROMPT, TURN = 4096, 2048, 300
FORKED = (1024, 65536)
LABELS = {
    "open_cache": "OpenCache: the ledger and 16 files",
    "open_cache_known": "OpenCache where the worker has the ledger",
    "get_agent": "GetAgent",
    "commit_turn": f"CommitTurn, {TURN} tokens",
    "delete_agent": "DeleteAgent, erased from the disk",
    **{f"fork_{tokens}": f"ForkAgent at {tokens // 1024}K tokens" for tokens in FORKED},
}


def latency(samples: Sequence[float]) -> dict[str, Any]:
    cuts = statistics.quantiles(samples, n=100, method="inclusive")
    return {**results.summary([round(sample, 6) for sample in samples]), "p99": cuts[98]}


async def timed(call: Callable[[Any], Awaitable[object]], request: object) -> float:
    started = time.perf_counter()
    await call(request)
    return time.perf_counter() - started


class Bench:
    def __init__(self, agents: int, calls: int, runs: int) -> None:
        self.figures: dict[str, Any] = {"agents": agents, "tokens": TOKENS}
        self._agents = [Agent(f"agent-{number:06d}", TINY) for number in range(agents)]
        self._calls, self._runs = calls, runs
        self._random = random.Random(0)

    async def many_agents(self, data: Path) -> None:
        async with serving(data) as store:
            for agent in self._agents:
                await agent.speak(store, tokens_of(agent.name, TOKENS))
        starts = []
        for run in range(self._runs):
            async with serving(data) as store:
                starts.append(store.ready_seconds)
                if run == self._runs - 1:
                    await self._ask(store)
        self.figures["start"] = results.summary(starts)

    async def _ask(self, store: StoreProcess) -> None:
        await self._list(store)
        measures = (self._open, self._open_known, self._get, self._commit)
        for name, measure in zip(LABELS, measures, strict=False):
            self.figures[name] = latency([await measure(store) for _ in range(self._calls)])
        await self._fork(store)
        gone = self._random.sample(self._agents, max(2, min(self._calls, len(self._agents)) // 10))
        requests = [agent_pb2.DeleteAgentRequest(key=key(agent.name)) for agent in gone]
        self.figures["delete_agent"] = latency([await timed(store.agents.DeleteAgent, each) for each in requests])

    async def _list(self, store: StoreProcess) -> None:
        before = store.resident_bytes()
        store.forget_peak()
        found, token = 0, None
        while token != "":
            request = agent_pb2.ListAgentsRequest(namespace="default", page_size=1000, page_token=token or "")
            page = await store.agents.ListAgents(request)
            found, token = found + len(page.agents), page.next_page_token
        if found != len(self._agents):
            raise RuntimeError(f"{found} agents were listed, not {len(self._agents)}")
        self.figures["list_agents"] = {"bytes_before": before, "bytes_peak": store.peak_bytes()}

    async def _open(self, store: StoreProcess) -> float:
        return await timed(store.cache.OpenCache, self._any())

    async def _open_known(self, store: StoreProcess) -> float:
        request = self._any()
        request.known.CopyFrom((await store.cache.OpenCache(request)).version)
        return await timed(store.cache.OpenCache, request)

    def _any(self) -> pb.OpenCacheRequest:
        agent = self._random.choice(self._agents)
        hashes = [header.chain_hash for header in agent.headers()]
        return pb.OpenCacheRequest(key=key(agent.name), block_hashes=hashes)

    async def _get(self, store: StoreProcess) -> float:
        request = agent_pb2.GetAgentRequest(key=key(self._random.choice(self._agents).name))
        return await timed(store.agents.GetAgent, request)

    async def _commit(self, store: StoreProcess) -> float:
        agent = self._random.choice(self._agents).name
        found = (await store.agents.GetAgent(agent_pb2.GetAgentRequest(key=key(agent)))).agent
        request = turn(agent, tokens_of(agent, TURN), found.version, found.tokens)
        return await timed(store.cache.CommitTurn, request)

    async def _fork(self, store: StoreProcess) -> None:
        for tokens in FORKED:
            agent = Agent(f"long-{tokens}", TINY)
            for number in range(tokens // 1024):
                await agent.speak(store, tokens_of(f"{tokens} {number}", 1024))
        seconds: dict[int, list[float]] = {tokens: [] for tokens in FORKED}
        for number in range(max(2, self._calls // 10)):
            for tokens in FORKED:
                request = agent_pb2.ForkAgentRequest(key=key(f"long-{tokens}"), new_agent_id=f"fork-{tokens}-{number}")
                seconds[tokens].append(await timed(store.agents.ForkAgent, request))
        self.figures |= {f"fork_{tokens}": latency(each) for tokens, each in seconds.items()}

    async def turn_writes(self, data: Path, turns: int) -> None:
        """Count bytes sent to the disk for a turn, over the Q4 bytes of its new tokens and the tail."""
        agent, ratios = Agent("writer", LLAMA), []
        async with serving(data) as store:
            await agent.speak(store, tokens_of("prompt", PROMPT))
            for number in range(turns):
                needed = (TURN + len(agent.tokens) % BLOCK_TOKENS) * LLAMA.bytes_per_token
                before = written_bytes(store.pid) + written_bytes()
                await agent.speak(store, tokens_of(f"turn {number}", TURN))
                ratios.append((written_bytes(store.pid) + written_bytes() - before) / needed)
        self.figures["turn_writes"] = results.summary(ratios)


def tables(figures: dict[str, Any]) -> list[Table]:
    latencies = [
        (label, *(f"{figures[name][at] * 1000:.1f} ms" for at in ("median", "p99"))) for name, label in LABELS.items()
    ]
    before, peak = (figures["list_agents"][name] / 1e6 for name in ("bytes_before", "bytes_peak"))
    writes = "bytes written per turn over Q4 bytes of its new tokens and the tail"
    others = [
        ("memory while ListAgents pages through all", f"{before:.0f} → {peak:.0f} MB"),
        ("start until ready", f"{figures['start']['median']:.1f} s"),
        (writes, f"{figures['turn_writes']['median']:.3f}x"),
    ]
    title = f"The cache store, {figures['agents']:,} agents of {figures['tokens']} tokens"
    return [Table(title, ("", "median", "99 %"), latencies), Table("Its memory, start and files", ("", ""), others)]


async def main(arguments: argparse.Namespace) -> None:
    bench = Bench(arguments.agents, arguments.calls, arguments.runs)
    with tempfile.TemporaryDirectory(prefix="store-", dir=arguments.directory) as folder:
        await bench.many_agents(Path(folder) / "many")
        await bench.turn_writes(Path(folder) / "one", arguments.turns)
    results.conclude(arguments.output, bench.figures, tables(bench.figures))


def parser() -> argparse.ArgumentParser:
    found = options.parser(__doc__, "store")
    found.add_argument("--agents", type=options.at_least(2), default=1000)
    found.add_argument(
        "--calls", type=options.at_least(2), default=1000, help="of each kind; of forks and deletions a tenth"
    )
    found.add_argument("--turns", type=options.at_least(1), default=20, help="turns whose bytes are counted")
    found.add_argument("--runs", type=options.at_least(1), default=3, help="starts")
    found.add_argument("--directory", help="where the data directories are made (default: the system's temporary one)")
    return found


if __name__ == "__main__":
    sys.exit(asyncio.run(main(parser().parse_args())))
