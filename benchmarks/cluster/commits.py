"""Commits per second of a store on one machine's SQLite and on PostgreSQL, by how many agents speak at once.

    agentmem bench commits [--agents 1 8 32 128] [--database postgresql://… --standby postgresql://…]

A client for each agent commits turn after turn of 64 tokens at a real store. --database names a server without a
standby, --standby one whose commits wait for one; without either, both are started here. All are measured in turns, and
compared with SQLite's figures of the same round.
"""

import argparse
import asyncio
import sys
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import numpy as np

from benchmarks import options, results
from benchmarks.cluster import postgres
from benchmarks.cluster.postgres import paired
from benchmarks.live import scratch
from benchmarks.nodes import HOST
from benchmarks.store.agents import tokens_of, turn
from benchmarks.store.process import StoreProcess, serving
from benchmarks.tables import Table, spread
from gateway.cluster.cli.certificates import authority, issue

SQLITE, POSTGRESQL, STANDBY = "SQLite", "PostgreSQL", "PostgreSQL, standby"
_SURVIVES = {POSTGRESQL: "crash", STANDBY: "server"}
_TOKENS = 64


@asynccontextmanager
async def store(name: str, url: str) -> AsyncIterator[StoreProcess]:
    """Start a store in a new directory; `url` is libpq's, "" for SQLite."""
    if not url:
        async with serving() as found:
            yield found
        return
    with scratch() as root:
        certificates = issue(authority(root), root, HOST, 1)
        flags = (f"--node=bench-{uuid.uuid4().hex[:8]}", f"--advertise={HOST}:1", f"--cluster-tls={certificates}")
        survives = f"--cluster-survives={_SURVIVES[name]}"
        async with serving(flags=(*flags, survives), environment={"AGENTMEM_STORE_CLUSTER": url}) as found:
            yield found


async def speak(found: StoreProcess, agent: str, end: float) -> list[float]:
    """Commit turns of an agent until a time (monotonic); return the seconds of each."""
    tokens, base, took = tokens_of(agent, _TOKENS), None, list[float]()
    while (began := time.monotonic()) < end:
        base = (await found.cache.CommitTurn(turn(agent, tokens, base, len(took) * _TOKENS))).version
        took.append(time.monotonic() - began)
    return took


async def sample(found: StoreProcess, agents: int, seconds: float) -> dict[str, float]:
    """Return commits per second of so many agents at once, and milliseconds of one."""
    run = uuid.uuid4().hex[:6]
    await speak(found, f"{run}-first", time.monotonic() + 0.5)
    began = time.monotonic()
    each = await asyncio.gather(*(speak(found, f"{run}-{n}", began + seconds) for n in range(agents)))
    passed = time.monotonic() - began
    took = 1000 * np.array([one for some in each for one in some])
    return {"rate": len(took) / passed, "p50": float(np.median(took)), "p99": float(np.percentile(took, 99))}


async def measure(urls: Mapping[str, str], agents: Sequence[int], seconds: float, samples: int) -> dict[str, Any]:
    found: dict[str, dict[str, list[dict[str, float]]]] = {name: {} for name in urls}
    for _ in range(samples):
        for name, url in urls.items():
            async with store(name, url) as served:
                for number in agents:
                    found[name].setdefault(str(number), []).append(await sample(served, number, seconds))
    return figures({"agents": list(agents), "seconds": seconds, "samples": samples}, found)


def figures(asked: dict[str, Any], found: Mapping[str, Mapping[str, Sequence[dict[str, float]]]]) -> dict[str, Any]:
    ways: dict[str, Any] = {}
    for name, by_agents in found.items():
        ways[name] = {}
        for agents, mine in by_agents.items():
            ways[name][agents] = {figure: results.summary([each[figure] for each in mine]) for figure in mine[0]}
            pairs = zip(mine, found[SQLITE][agents], strict=True)
            ways[name][agents]["of_sqlite"] = results.summary([each["rate"] / other["rate"] for each, other in pairs])
    return {"asked": asked, "ways": ways}


def tables(figures: dict[str, Any]) -> list[Table]:
    ways, agents = figures["ways"], [str(number) for number in figures["asked"]["agents"]]
    columns = ("", *(f"{number} agent{'' if number == '1' else 's'}" for number in agents))
    note = f"Medians of {figures['asked']['samples']} rounds of {figures['asked']['seconds']:g} s (range)."

    def table(title: str, figure: str, digits: int, unit: str) -> Table:
        rows = [(name, *(spread(ways[name][number][figure], digits, unit) for number in agents)) for name in ways]
        return Table(title, columns, rows, note)

    return [
        table("Commits per second", "rate", 0, ""),
        table("Of SQLite's in the same round", "of_sqlite", 2, "x"),
        table("99 of 100 take at most", "p99", 1, " ms"),
    ]


@contextmanager
def servers(database: str, standby: str) -> Iterator[dict[str, str]]:
    """Yield libpq's URL of each, "" for SQLite; start servers where none is named."""
    if database or standby:
        urls = {POSTGRESQL: database, STANDBY: standby}
        yield {SQLITE: "", **{name: url for name, url in urls.items() if url}}
        return
    try:
        with postgres.serving(postgres.MEASURED) as alone, paired(postgres.MEASURED) as pair:
            yield {SQLITE: "", POSTGRESQL: alone.conninfo, STANDBY: pair.primary.conninfo}
    except postgres.NoServer as problem:
        raise SystemExit(f"{problem}; install one, or name servers with --database and --standby") from problem


async def main(arguments: argparse.Namespace) -> None:
    with servers(arguments.database, arguments.standby) as urls:
        found = await measure(urls, arguments.agents, arguments.seconds, arguments.samples)
    results.conclude(arguments.output, found, tables(found))


def parser() -> argparse.ArgumentParser:
    found = options.parser(__doc__, "commits")
    found.add_argument("--agents", type=options.at_least(1), nargs="+", default=[1, 8, 32, 128])
    found.add_argument("--database", default="", help="libpq's URL of a PostgreSQL without a standby")
    found.add_argument("--standby", default="", help="libpq's URL of one with a synchronous standby")
    found.add_argument("--seconds", type=float, default=5.0, help="how long each is measured")
    found.add_argument("--samples", type=options.at_least(1), default=3, help="rounds")
    return found


if __name__ == "__main__":
    sys.exit(asyncio.run(main(parser().parse_args())))
