"""Commits per second of a store on one machine's SQLite and on PostgreSQL, by how many agents speak at once.

    agentmem bench commits [--agents 1 8 32 128] [--database postgresql://… --standby postgresql://…]

A real store process on new ledgers, and a client on its socket for each agent, which commits one turn of 64 tokens
after the other. --database names a server without a standby, --standby one whose commits wait for one; both as their
operator runs them, with an empty database, in which the tables are left. Where neither is named, both are started here,
on one disk. All are measured in turns, since a disk is as fast as it is just then, and each round's figures are held
against SQLite's of the same round.
"""

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
import time
import uuid
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from agentmem.channels import connect
from agentmem.v1 import cache_store_pb2 as pb
from agentmem.v1 import cache_store_pb2_grpc, types_pb2
from benchmarks import options, results
from benchmarks.cluster import postgres, shared_options
from benchmarks.cluster.postgres_pair import paired
from benchmarks.tables import Table, spread

SQLITE, POSTGRESQL, STANDBY = "SQLite", "PostgreSQL", "PostgreSQL, standby"
_SURVIVES = {POSTGRESQL: "crash", STANDBY: "server"}
_START_SECONDS = 60.0
_TOKENS = 64


@asynccontextmanager
async def store(name: str, url: str) -> AsyncIterator[grpc.aio.Channel]:
    """A store process in a new directory; `url` is libpq's, "" for SQLite."""
    root = Path(tempfile.mkdtemp(prefix="am-", dir="/tmp"))
    command = ["-m", "cache_service", "--data", str(root / "d"), "--metrics", "", "--log-level", "ERROR"]
    environment = dict(os.environ)
    if url:
        making = (*_AGENTMEM, "cluster", "certificates", str(root / "tls"), _HOST)
        made = await asyncio.create_subprocess_exec(*making, stdout=DEVNULL)
        assert await made.wait() == 0, "no certificates were made"
        command += ["--node", f"bench-{uuid.uuid4().hex[:8]}", "--advertise", f"{_HOST}:1"]
        command += ["--cluster-tls", str(root / "tls" / _HOST), "--cluster-survives", _SURVIVES[name]]
        environment["AGENTMEM_STORE_CLUSTER"] = url
    process = await asyncio.create_subprocess_exec(sys.executable, *command, env=environment)
    try:
        async with connect(f"unix:{root}/d/run/store.sock") as channel:
            async with asyncio.timeout(_START_SECONDS):
                await channel.channel_ready()
            yield channel
    finally:
        process.terminate()
        await process.wait()
        shutil.rmtree(root, ignore_errors=True)


_AGENTMEM = (sys.executable, "-m", "gateway.cli.main")
_HOST = "127.0.0.1"


def turn(key: types_pb2.AgentKey, base: types_pb2.AgentVersion | None, number: int) -> pb.CommitTurnRequest:
    """A turn of 64 tokens, behind `number` others."""
    return pb.CommitTurnRequest(
        key=key,
        base=base,
        keep_tokens=number * _TOKENS,
        token_ids=range(_TOKENS),
        text=b"abcd" * _TOKENS,
        offsets=range(4, 4 * _TOKENS + 1, 4),
        tokenizer_hash="bench",
        generated_tokens=_TOKENS // 2,
        request_id=f"turn-{number}",
        request_digest=bytes(16),
        commit_id=os.urandom(16),
    )


async def speak(stub: Any, agent: str, end: float) -> list[float]:
    """Commit turn after turn of an agent until a time (monotonic); the seconds that each took."""
    key = types_pb2.AgentKey(namespace="bench", agent_id=agent, model_id="none")
    base, took = None, list[float]()
    while (began := time.monotonic()) < end:
        base = (await stub.CommitTurn(turn(key, base, len(took)))).version
        took.append(time.monotonic() - began)
    return took


async def sample(channel: grpc.aio.Channel, agents: int, seconds: float) -> dict[str, float]:
    """Commits per second of so many agents at once, and how long one takes, in milliseconds."""
    stub, run = cache_store_pb2_grpc.CacheStoreServiceStub(channel), uuid.uuid4().hex[:8]
    await speak(stub, f"{run}-first", time.monotonic() + 0.5)
    began = time.monotonic()
    each = await asyncio.gather(*(speak(stub, f"{run}-{n}", began + seconds) for n in range(agents)))
    passed = time.monotonic() - began
    took = 1000 * np.array([one for some in each for one in some])
    return {"rate": len(took) / passed, "p50": float(np.median(took)), "p99": float(np.percentile(took, 99))}


async def measure(urls: Mapping[str, str], agents: Sequence[int], seconds: float, samples: int) -> dict[str, Any]:
    """All of them, in turns."""
    found: dict[str, dict[str, list[dict[str, float]]]] = {name: {} for name in urls}
    for _ in range(samples):
        for name, url in urls.items():
            async with store(name, url) as channel:
                for number in agents:
                    got = await sample(channel, number, seconds)
                    found[name].setdefault(str(number), []).append(got)
    return figures({"agents": list(agents), "seconds": seconds, "samples": samples}, found)


def figures(asked: dict[str, Any], found: Mapping[str, Mapping[str, Sequence[dict[str, float]]]]) -> dict[str, Any]:
    """What is written: medians, those of each round's ratio to SQLite, and all samples."""
    ways: dict[str, Any] = {}
    for name, by_agents in found.items():
        ways[name] = {}
        for agents, mine in by_agents.items():
            ways[name][agents] = {figure: results.summary([each[figure] for each in mine]) for figure in mine[0]}
            pairs = zip(mine, found[SQLITE][agents], strict=True)
            ways[name][agents]["of_sqlite"] = results.summary([each["rate"] / other["rate"] for each, other in pairs])
    return {"asked": asked, "ways": ways, "samples": found}


def tables(figures: dict[str, Any]) -> list[Table]:
    """Commits per second, and what one takes."""
    ways, agents = figures["ways"], [str(number) for number in figures["asked"]["agents"]]
    names = ("" if number == "1" else "s" for number in agents)
    columns = ("", *(f"{number} agent{s}" for number, s in zip(agents, names, strict=True)))
    note = f"Medians of {figures['asked']['samples']} rounds of {figures['asked']['seconds']:g} s (range)."

    def rows(figure: str, digits: int, unit: str) -> list[tuple[str, ...]]:
        return [(name, *(spread(ways[name][number][figure], digits, unit) for number in agents)) for name in ways]

    return [
        Table("Commits per second", columns, rows("rate", 0, "")),
        Table("Of SQLite's in the same round", columns, rows("of_sqlite", 2, "x")),
        Table("Half of the commits take at most", columns, rows("p50", 1, " ms")),
        Table("99 of 100 take at most", columns, rows("p99", 1, " ms"), note),
    ]


@contextmanager
def servers(database: str, standby: str) -> Iterator[dict[str, str]]:
    """The URL of each, "" for SQLite: those that are named, or else those of servers that are started for it."""
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
    """Measure, print, write."""
    with servers(arguments.database, arguments.standby) as urls:
        found = await measure(urls, arguments.agents, arguments.seconds, arguments.samples)
    results.conclude(arguments.output or "commits", found, tables(found))


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = options.parser(__doc__)
    found.add_argument("--agents", type=options.at_least(1), nargs="+", default=[1, 8, 32, 128])
    found.add_argument("--database", default="", help="libpq's URL of a PostgreSQL without a standby")
    found.add_argument("--standby", default="", help="libpq's URL of one with a synchronous standby")
    shared_options.add(found, "samples", seconds=5.0, output="commits")
    return found


if __name__ == "__main__":
    sys.exit(asyncio.run(main(parser().parse_args())))
