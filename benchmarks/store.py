"""The cache store by itself: a real process, asked over its socket, one call at a time.

    python -m benchmarks.store [--agents 10000]

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

from rich.console import Console
from rich.table import Table

from agentmem.v1 import agent_pb2
from agentmem.v1 import cache_store_pb2 as pb
from benchmarks import results, store_files
from benchmarks.store_agents import fill, hashes_of, key, tokens_of, turn
from benchmarks.store_process import StoreProcess, serving

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
                await store_files.Agent(agent, store_files.TINY).speak(store, tokens_of(agent, TOKENS))
        self.figures["agents_through_api"] = through_api
        fill(data, self._names[through_api:], TOKENS)
        self.figures["database_bytes"] = (data / "store.db").stat().st_size
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
            agent = store_files.Agent(f"long-{tokens}", store_files.TINY)
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

    async def files(self, data: Path, turns: int) -> None:
        """Bytes written, and loads."""
        async with serving(data) as store:
            self.figures["turn_writes"] = await store_files.turn_writes(store, turns)
            self.figures["load"] = await store_files.loads(store, self._runs + 4)

    def show(self) -> None:
        """The figures as a table."""
        found = self.figures
        table = Table(title=f"Cache store, {found['agents']} agents of {TOKENS} tokens")
        for column in ("what", "median", "p99"):
            table.add_column(column, justify="right")
        for name in ("open_cache", "open_cache_known", "get_agent", "commit_turn", "delete_agent"):
            table.add_row(name, *(f"{found[name][at] * 1000:.2f} ms" for at in ("median", "p99")))
        for tokens in FORKED:
            each = found["fork_agent"][str(tokens)]
            table.add_row(f"fork_agent, {tokens} tokens", *(f"{each[at] * 1000:.2f} ms" for at in ("median", "p99")))
        pages = found["list_agents"]
        table.add_row("list_agents, a page of 1000", f"{pages['page_seconds']['median'] * 1000:.1f} ms")
        before, peak = pages["resident_bytes_before"], pages["resident_bytes_peak"]
        table.add_row("memory before, and its peak while paging", f"{before / 1e6:.0f} MB", f"{peak / 1e6:.0f} MB")
        table.add_row("start until ready", f"{found['start']['median']:.2f} s")
        table.add_row(
            "bytes written / Q4 bytes of new tokens and tail", f"{found['turn_writes']['ratio']['median']:.3f}x"
        )
        table.add_row("verified load / plain read", f"{found['load']['ratio']:.2f}x")
        Console().print(table)


async def main(arguments: argparse.Namespace) -> None:
    """Measure, print, write."""
    bench = Bench(arguments.agents, arguments.calls, arguments.runs)
    for measure in (bench.many_agents, lambda data: bench.files(data, arguments.turns)):
        folder = Path(tempfile.mkdtemp(prefix="store-bench-", dir=arguments.directory))
        try:
            await measure(folder / "data")
        finally:
            shutil.rmtree(folder)
    bench.show()
    options = " ".join(f"--{name} {getattr(arguments, name)}" for name in ("agents", "calls", "turns", "runs"))
    Console().print(
        f"written to {results.write(arguments.name, f'python -m benchmarks.store {options}', bench.figures)}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=10000)
    parser.add_argument("--calls", type=int, default=1000, help="calls of each kind; of forks and deletions a tenth")
    parser.add_argument("--turns", type=int, default=20, help="turns whose bytes are counted")
    parser.add_argument("--runs", type=int, default=3, help="starts")
    parser.add_argument("--directory", help="where the data directories are made (default: the system's temporary one)")
    parser.add_argument("--name", default="store", help="of the file of results")
    sys.exit(asyncio.run(main(parser.parse_args())))
