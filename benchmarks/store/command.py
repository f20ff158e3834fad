"""The cache store by itself: a real process, asked over its socket, one call at a time.

    agentmem bench store [--agents 10000]

Measured are, with so many agents of 4096 tokens and 16 blocks in one namespace: the time from the start of the process
until it is ready, memory while ListAgents pages through all, latencies of OpenCache (which answers the whole ledger and
16 files), GetAgent, CommitTurn, DeleteAgent, and of ForkAgent at 1K and 64K tokens. Then, with files of the geometry of
Llama 3.1 8B in Q4: bytes written per turn, and what a verified load costs beside reading the same bytes. A share of the
agents is made through the API, the rest by the store's own functions before it starts. Needs Linux.
"""

import argparse
import asyncio
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from agentmem.v1 import agent_pb2
from agentmem.v1 import cache_store_pb2 as pb
from benchmarks import options, results
from benchmarks.store import files
from benchmarks.store.agents import fill, hashes_of, key, tokens_of, turn
from benchmarks.store.process import StoreProcess, serving
from benchmarks.tables import Table

TOKENS = 4096
TURN = 300
FORKED = (1024, 65536)
THROUGH_API = 0.005


def latency(samples: Sequence[float]) -> dict[str, Any]:
    """Median, 99th percentile and all samples, in seconds."""
    cuts = statistics.quantiles(samples, n=100, method="inclusive")
    return {**results.summary([round(sample, 6) for sample in samples]), "p99": cuts[98]}


async def timed(call: Callable[[Any], Awaitable[object]], request: object) -> float:
    """How long one call takes."""
    started = time.perf_counter()
    await call(request)
    return time.perf_counter() - started


class Bench:
    """All measurements. `figures` grows as they are made."""

    def __init__(self, agents: int, calls: int, runs: int) -> None:
        self.figures: dict[str, Any] = {"agents": agents, "tokens": TOKENS, "block_hashes": TOKENS // 256}
        self._names = [f"agent-{number:06d}" for number in range(agents)]
        self._calls, self._runs = calls, runs
        self._random = random.Random(0)

    async def many_agents(self, data: Path) -> None:
        """Everything that is asked where there are many agents."""
        through_api = max(1, int(len(self._names) * THROUGH_API))
        async with serving(data) as store:
            for agent in self._names[:through_api]:
                await files.Agent(agent, files.TINY).speak(store, tokens_of(agent, TOKENS))
        self.figures["agents_through_api"] = through_api
        fill(data, self._names[through_api:], TOKENS)
        self.figures["database_bytes"] = sum((data / name).stat().st_size for name in ("store.db", "warm.db"))
        starts = []
        for run in range(self._runs):
            async with serving(data) as store:
                starts.append(store.ready_seconds)
                if run == self._runs - 1:
                    await self._ask(store)
        self.figures["start"] = results.summary(starts)

    async def _ask(self, store: StoreProcess) -> None:
        await self._list(store)
        measures = {
            "open_cache": self._open,
            "open_cache_known": self._open_known,
            "get_agent": self._get,
            "commit_turn": self._commit,
        }
        for name, measure in measures.items():
            self.figures[name] = latency([await measure(store) for _ in range(self._calls)])
        await self._fork(store)
        gone = self._random.sample(self._names, max(2, min(self._calls, len(self._names)) // 10))
        requests = [agent_pb2.DeleteAgentRequest(key=key(agent)) for agent in gone]
        self.figures["delete_agent"] = latency([await timed(store.agents.DeleteAgent, each) for each in requests])

    async def _list(self, store: StoreProcess) -> None:
        before = store.resident_bytes()
        store.forget_peak()
        seconds, found, token = [], 0, ""
        while True:
            request = agent_pb2.ListAgentsRequest(namespace="default", page_size=1000, page_token=token)
            started = time.perf_counter()
            page = await store.agents.ListAgents(request)
            seconds.append(time.perf_counter() - started)
            found += len(page.agents)
            if not (token := page.next_page_token):
                break
        if found != len(self._names):
            raise RuntimeError(f"{found} agents were listed, not {len(self._names)}")
        self.figures["list_agents"] = {
            "page_size": 1000,
            "page_seconds": results.summary(seconds),
            "resident_bytes_before": before,
            "resident_bytes_peak": store.peak_bytes(),
        }

    async def _open(self, store: StoreProcess) -> float:
        return await timed(store.cache.OpenCache, self._any())

    async def _open_known(self, store: StoreProcess) -> float:
        request = self._any()
        request.known.CopyFrom((await store.cache.OpenCache(request)).version)
        return await timed(store.cache.OpenCache, request)

    def _any(self) -> pb.OpenCacheRequest:
        agent = self._random.choice(self._names)
        return pb.OpenCacheRequest(key=key(agent), block_hashes=hashes_of(agent, TOKENS))

    async def _get(self, store: StoreProcess) -> float:
        return await timed(store.agents.GetAgent, agent_pb2.GetAgentRequest(key=key(self._random.choice(self._names))))

    async def _commit(self, store: StoreProcess) -> float:
        agent = self._random.choice(self._names)
        found = (await store.agents.GetAgent(agent_pb2.GetAgentRequest(key=key(agent)))).agent
        request = turn(agent, tokens_of(agent, TURN), found.version, found.tokens)
        return await timed(store.cache.CommitTurn, request)

    async def _fork(self, store: StoreProcess) -> None:
        """Forks of two agents by turns; their turns have 1024 tokens."""
        for tokens in FORKED:
            agent = files.Agent(f"long-{tokens}", files.TINY)
            for number in range(tokens // 1024):
                await agent.speak(store, tokens_of(f"{tokens} {number}", 1024))
        seconds: dict[int, list[float]] = {tokens: [] for tokens in FORKED}
        for number in range(max(2, self._calls // 10)):
            for tokens in FORKED:
                request = agent_pb2.ForkAgentRequest(key=key(f"long-{tokens}"), new_agent_id=f"fork-{tokens}-{number}")
                seconds[tokens].append(await timed(store.agents.ForkAgent, request))
        short, long = (latency(seconds[tokens]) for tokens in FORKED)
        self.figures["fork_agent"] = {
            **{str(tokens): each for tokens, each in zip(FORKED, (short, long), strict=True)},
            "ratio": long["median"] / short["median"],
        }

    async def on_files(self, data: Path, turns: int) -> None:
        """Bytes written, and loads."""
        async with serving(data) as store:
            self.figures["turn_writes"] = await files.turn_writes(store, turns)
            self.figures["load"] = await files.loads(store, self._runs + 4)


def tables(figures: dict[str, Any]) -> list[Table]:
    """Latencies; then memory, the start, and bytes of files."""

    def row(name: str, latency: dict[str, Any]) -> tuple[str, ...]:
        return name, *(f"{latency[at] * 1000:.1f} ms" for at in ("median", "p99"))

    pages, load = figures["list_agents"], figures["load"]
    forks = {int(tokens): each for tokens, each in figures["fork_agent"].items() if tokens != "ratio"}
    latencies = [
        row("OpenCache: the ledger and 16 files", figures["open_cache"]),
        row("OpenCache where the worker has the ledger", figures["open_cache_known"]),
        row("GetAgent", figures["get_agent"]),
        row(f"CommitTurn, {TURN} tokens", figures["commit_turn"]),
        row("DeleteAgent, erased from the disk", figures["delete_agent"]),
        *(row(f"ForkAgent at {tokens // 1024}K tokens", each) for tokens, each in forks.items()),
    ]
    before, peak = pages["resident_bytes_before"], pages["resident_bytes_peak"]
    others = [
        (f"ListAgents, a page of {pages['page_size']}", f"{pages['page_seconds']['median'] * 1000:.0f} ms"),
        ("memory while ListAgents pages through all", f"{before / 1e6:.0f} → {peak / 1e6:.0f} MB"),
        ("start until ready", f"{figures['start']['median']:.1f} s"),
        (
            "bytes written per turn over Q4 bytes of its new tokens and the tail",
            f"{figures['turn_writes']['ratio']['median']:.3f}x",
        ),
        (
            f"{load['files']} files read, hashed and checked over read only, from the page cache",
            f"{load['ratio']:.1f}x",
        ),
    ]
    title = f"The cache store, {figures['agents']:,} agents of {figures['tokens']} tokens"
    return [Table(title, ("", "median", "99 %"), latencies), Table("Its memory, start and files", ("", ""), others)]


async def main(arguments: argparse.Namespace) -> None:
    """Measure, print, write."""
    bench = Bench(arguments.agents, arguments.calls, arguments.runs)
    for measure in (bench.many_agents, lambda data: bench.on_files(data, arguments.turns)):
        folder = Path(tempfile.mkdtemp(prefix="store-bench-", dir=arguments.directory))
        try:
            await measure(folder / "data")
        finally:
            shutil.rmtree(folder)
    results.conclude(arguments.output, bench.figures, tables(bench.figures))


if __name__ == "__main__":
    parser = options.parser(__doc__)
    parser.add_argument("--agents", type=int, default=10000)
    parser.add_argument("--calls", type=int, default=1000, help="calls of each kind; of forks and deletions a tenth")
    parser.add_argument("--turns", type=int, default=20, help="turns whose bytes are counted")
    parser.add_argument("--runs", type=options.at_least(1), default=3, help="starts")
    parser.add_argument("--directory", help="where the data directories are made (default: the system's temporary one)")
    parser.add_argument("--output", default="store", help="name of the file under benchmarks/results")
    sys.exit(asyncio.run(main(parser.parse_args())))
