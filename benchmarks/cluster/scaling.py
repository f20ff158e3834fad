"""Turns per second of 1, 2 and 4 nodes on one PostgreSQL, with a worker that computes nothing and takes its time.

    agentmem bench scaling [--nodes 1 2 4] [--database postgresql://…]

Each node is a real store, a real gateway and a scripted worker, which is like a GPU of fixed speed: it runs so many
turns at once (--slots), each takes --prefill seconds until its first token and --answer seconds from there, and --cold
more where the agent's memory is not hot. Agents ask turn after turn at the gateways' doors, each at one of its own, and
what they were told is held against the ledger in the end. All numbers of nodes are measured in turns on one database:
that of --database, where tables are left, or a server's that is started for it. All processes share one machine, so the
table says how much of its processors they take: where that is most of them, they are the limit, and not the nodes.
"""

import argparse
import asyncio
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psutil

from benchmarks import options, results
from benchmarks.cluster import postgres, shared_options
from benchmarks.cluster.clusters import Cluster, cluster, database
from benchmarks.cluster.history import violations
from benchmarks.cluster.machines import Node, processor_seconds
from benchmarks.cluster.speakers import Spoken, speakers
from benchmarks.tables import Claim, Table, spread

SERVICES = ("gateway", "store", "worker")
DATABASE, CLIENTS = "PostgreSQL", "clients"
_FULL = 0.8
"""Of the processors, or of the nodes' slots: who uses more of them has no more."""


async def sample(
    url: str, server: postgres.Server | None, nodes: int, asked: Mapping[str, Any], made_of: Callable[..., Node] = Node
) -> dict[str, Any]:
    """What so many nodes do. Raises RuntimeError where the history is not one of a single ledger."""
    flags = [f"--{name}={asked[option]}" for option, name in _WORKER.items()]
    run = uuid.uuid4().hex[:6]
    agents = [f"{run} {number}" for number in range(nodes * asked["agents"])]
    async with cluster(url, nodes, [*flags, f"--max-requests={2 * len(agents)}"], made=made_of) as made:
        async with speakers(made, agents) as speaking:
            await speaking.wait(asked["warm"])
            began, before = time.monotonic(), used(made, server)
            await speaking.wait(asked["seconds"])
            ended, after = time.monotonic(), used(made, server)
            await speaking.end()
        wrong = violations(
            (turn.append() for turn in speaking.spoken), await made.lists(agents, next(iter(made.nodes.values())))
        )
    if wrong:
        raise RuntimeError(f"{len(wrong)} of what clients saw is no single ledger's, as: {wrong[0]}")
    took = ended - began
    turns = [turn for turn in speaking.spoken if began <= turn.ended < ended]
    processors = {name: (after[name] - before[name]) / took for name in after}
    return {**told(turns, took), "slots": _busy(turns, took, nodes, asked), "processors": processors}


_WORKER = {"prefill": "seconds", "cold": "cold-seconds", "answer": "answer-seconds", "slots": "slots"}


def told(turns: Sequence[Spoken], seconds: float) -> dict[str, float]:
    """What clients saw in so many seconds."""
    first = [turn.first - turn.began for turn in turns]
    later = [turn.hot for turn in turns if turn.hot is not None]
    return {
        "rate": len(turns) / seconds,
        "first": results.percentile(first, 50),
        "first_p99": results.percentile(first, 99),
        "hot": sum(later) / len(later) if later else 0.0,
        "failures": sum(len(turn.failures) for turn in turns),
    }


def used(made: Cluster, server: postgres.Server | None) -> dict[str, float]:
    """Processor seconds so far, by kind of process; PostgreSQL's where it was started here."""
    each = [node.used() for node in made.nodes.values()]
    found = {name: sum(one[name] for one in each) for name in SERVICES}
    found[CLIENTS] = processor_seconds([psutil.Process()])
    if server is not None:
        found[DATABASE] = processor_seconds(server.processes())
    return found


def _busy(turns: Sequence[Spoken], seconds: float, nodes: int, asked: Mapping[str, Any]) -> float:
    """The share of the slots' time in which a turn was computed."""
    each = asked["prefill"] + asked["answer"]
    computed = sum(each + (0 if turn.hot else asked["cold"]) for turn in turns)
    return float(computed / (seconds * nodes * asked["slots"]))


async def measure(url: str, asked: Mapping[str, Any], made_of: Callable[..., Node] = Node) -> dict[str, Any]:
    """All numbers of nodes, in turns."""
    found: dict[str, list[dict[str, Any]]] = {str(nodes): [] for nodes in asked["nodes"]}
    with database(url) as (where, server):
        for _ in range(asked["samples"]):
            for nodes in asked["nodes"]:
                found[str(nodes)].append(await sample(where, server, nodes, asked, made_of))
    return figures(asked, found)


def figures(asked: Mapping[str, Any], found: Mapping[str, Sequence[dict[str, Any]]]) -> dict[str, Any]:
    """What is written: medians, of each round's ratio to the fewest nodes, too, and all samples."""
    alone = next(iter(found.values()))
    ways: dict[str, Any] = {}
    for nodes, mine in found.items():
        names = ("rate", "first", "first_p99", "hot", "slots", "failures")
        ways[nodes] = {name: results.summary([each[name] for each in mine]) for name in names}
        ratios = [each["rate"] / other["rate"] for each, other in zip(mine, alone, strict=True)]
        ways[nodes]["of_one"] = results.summary(ratios)
        kinds = mine[0]["processors"]
        ways[nodes]["processors"] = {k: results.summary([each["processors"][k] for each in mine]) for k in kinds}
        ways[nodes]["all_processors"] = results.summary([sum(each["processors"].values()) for each in mine])
    return {"asked": {**asked, "cores": psutil.cpu_count()}, "ways": ways, "samples": found}


def limit(way: Mapping[str, Any], cores: int) -> str:
    """What there is no more of."""
    if way["all_processors"]["median"] > _FULL * cores:
        return "processors"
    return "slots" if way["slots"]["median"] > _FULL else "agents"


def tables(figures: dict[str, Any]) -> list[Table]:
    """Turns, first tokens, where turns ran, and what it took of the processors."""
    asked, ways = figures["asked"], figures["ways"]
    columns = ("", *(f"{nodes} node{'' if nodes == '1' else 's'}" for nodes in ways))
    most = asked["slots"] / (asked["prefill"] + asked["answer"])

    def row(label: str, name: str, digits: int, unit: str, times: float = 1.0) -> tuple[str, ...]:
        return (label, *(spread(_times(way[name], times), digits, unit) for way in ways.values()))

    kinds = next(iter(ways.values()))["processors"]
    processors = [
        (kind, *(spread(way["processors"][kind], 2) for way in ways.values()))
        for kind in (*SERVICES, DATABASE, CLIENTS)
        if kind in kinds
    ]
    return [
        Table(
            "Turns of agents that ask one after the other",
            columns,
            [
                row("turns per second", "rate", 1, ""),
                row(f"of {columns[1]}'s in the same round", "of_one", 2, "x"),
                row("half of the first tokens after at most", "first", 0, " ms", 1000),
                row("99 of 100 first tokens after at most", "first_p99", 0, " ms", 1000),
                row("turns where the agent's last one ran", "hot", 1, " %", 100),
                row("time in which slots compute", "slots", 0, " %", 100),
                row("answers that were errors, and asked again", "failures", 0, ""),
                ("what there is no more of", *(limit(way, asked["cores"]) for way in ways.values())),
            ],
            f"Medians of {asked['samples']} rounds of {asked['seconds']:g} s (range). {asked['agents']} agents and "
            f"{asked['slots']} slots a node; a turn takes {asked['prefill']:g} s to its first token and "
            f"{asked['answer']:g} s more, and {asked['cold']:g} s more elsewhere, so a node does at most {most:.1f} "
            "turns per second. A first token's time has the wait for a slot in it.",
        ),
        Table(
            f"Processors in use, of {asked['cores']}",
            columns,
            [*processors, ("all", *(spread(way["all_processors"], 2) for way in ways.values()))],
            "Of all nodes together, which are on one machine.",
        ),
    ]


def _times(summary: Mapping[str, Any], times: float) -> dict[str, Any]:
    return {name: summary[name] * times for name in ("median", "min", "max")}


def claims(_: dict[str, Any]) -> list[Claim]:
    """None: what a machine that all nodes share allows is its own."""
    return []


async def main(arguments: argparse.Namespace) -> None:
    """Measure, print, write."""
    names = ("nodes", "agents", "slots", "prefill", "answer", "cold", "warm", "seconds", "samples")
    found = await measure(arguments.database, {name: getattr(arguments, name) for name in names})
    results.conclude(arguments.output or "scaling", found, tables(found))


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = options.parser(__doc__)
    found.add_argument("--nodes", type=options.at_least(1), nargs="+", default=[1, 2, 4])
    found.add_argument("--cold", type=float, default=0.4, help="seconds more where the agent's memory is not hot")
    found.add_argument("--warm", type=float, default=3.0, help="seconds that pass before")
    usual = ("database", "slots", "prefill", "answer", "samples")
    shared_options.add(found, *usual, agents=16, seconds=20.0, output="scaling")
    return found


if __name__ == "__main__":
    sys.exit(asyncio.run(main(parser().parse_args())))
