"""Clients' waits when a node of three dies, when one leaves, and when the database's primary dies.

    agentmem bench failover [--samples 3] [--detection 3]

Real stores and gateways with scripted workers, and a PostgreSQL with a synchronous standby. Clients ask again under the
same request_id at the next door, as SDKs wait. In each round a node is killed, another one leaves by SIGTERM (seconds
to the next first token of each agent that it had), and the primary is killed, its standby promoted --detection seconds
later. Last, all that clients were told is compared with the ledger.
"""

import argparse
import asyncio
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import options, results
from benchmarks.cluster import postgres
from benchmarks.cluster.clients import Speakers, Spoken, speakers
from benchmarks.cluster.clusters import Cluster, cluster
from benchmarks.cluster.history import violations
from benchmarks.cluster.postgres import Pair, paired
from benchmarks.nodes import Node
from benchmarks.tables import Table, spread

KILLED, LEFT, DATABASE = "killed", "left", "database"
_NODES = 3
_PATIENCE_SECONDS = 120.0


class Round:
    def __init__(self, made: Cluster, pair: Pair, speaking: Speakers, detection: float, between: float) -> None:
        self._made, self._pair, self._speaking = made, pair, speaking
        self._detection, self._between = detection, between

    async def lose(self, name: str, *, leaving: bool) -> dict[str, Any]:
        await self._speaking.wait(self._between)
        node = self._made.nodes[name]
        holders = await self._made.holders(
            self._speaking.agents, next(each for each in self._made.nodes.values() if each is not node)
        )
        concerned, began = {agent for agent, holder in holders.items() if holder == name}, time.monotonic()
        await asyncio.to_thread(node.leave if leaving else node.kill)
        waits: dict[str, float] = {}
        while time.monotonic() < began + _PATIENCE_SECONDS:
            waits = first_tokens(self._speaking.spoken, concerned, began)
            if waits.keys() == concerned:
                break
            await self._speaking.wait(0.1)
        else:
            raise RuntimeError(f"{sorted(concerned - waits.keys())} did not speak again")
        await self._speaking.wait(self._between)
        during = [turn for turn in self._speaking.spoken if turn.ended >= began]
        node.start()
        await node.ready()
        await self._made.known(_NODES)
        own = list(self._made.nodes).index(name)
        elsewhere = sum(bool(turn.failures) for turn in during if turn.door != own)
        return {"waits": sorted(waits.values()), "elsewhere": elsewhere, **told(during)}

    async def fail_over(self) -> dict[str, Any]:
        before = len(self._speaking.spoken)
        await self._speaking.wait(self._between)
        usual = self._speaking.spoken[before:]
        began = time.monotonic()
        await asyncio.to_thread(self._pair.primary.kill)
        await self._speaking.wait(self._detection)
        await asyncio.to_thread(self._pair.promote)
        promoted = time.monotonic()
        while len({turn.agent for turn in self._since(promoted)}) < len(self._speaking.agents):
            if time.monotonic() > began + _PATIENCE_SECONDS:
                raise RuntimeError("not all agents spoke again after the failover")
            await self._speaking.wait(0.1)
        await self._speaking.wait(self._between)
        behind = self._since(promoted)
        return {
            "usual": max(turn.ended - turn.began for turn in usual),
            "longest": max(turn.ended - turn.began for turn in behind),
            "promoted": promoted - began,
            "first": min(turn.ended for turn in behind) - promoted,
            **told(behind),
        }

    def _since(self, moment: float) -> list[Spoken]:
        return [turn for turn in self._speaking.spoken if turn.ended >= moment]


def first_tokens(spoken: Sequence[Spoken], agents: set[str], since: float) -> dict[str, float]:
    """Return the seconds to each agent's next first token, of a turn that was acknowledged."""
    found: dict[str, float] = {}
    for turn in spoken:
        if turn.agent in agents and turn.first >= since:
            found[turn.agent] = min(found.get(turn.agent, turn.first - since), turn.first - since)
    return found


def told(turns: Sequence[Spoken]) -> dict[str, Any]:
    failures: dict[str, int] = {}
    for failure in (each for turn in turns for each in turn.failures):
        failures[failure] = failures.get(failure, 0) + 1
    return {"turns": len(turns), "again": sum(bool(turn.failures) for turn in turns), "failures": failures}


async def sample(number: int, asked: dict[str, Any], made_of: Callable[..., Node] = Node) -> dict[str, Any]:
    run = uuid.uuid4().hex[:6]
    flags = (f"--seconds={asked['prefill']}", f"--answer-seconds={asked['answer']}", f"--slots={asked['slots']}")
    agents = [f"{run} {each}" for each in range(_NODES * asked["agents"])]
    with paired(postgres.MEASURED) as pair:
        async with cluster(pair.url, _NODES, [*flags, f"--max-requests={2 * len(agents)}"], made=made_of) as made:
            names = list(made.nodes)
            async with speakers(made, agents) as speaking:
                one = Round(made, pair, speaking, asked["detection"], asked["between"])
                found = {
                    KILLED: await one.lose(names[number % _NODES], leaving=False),
                    LEFT: await one.lose(names[(number + 1) % _NODES], leaving=True),
                    DATABASE: await one.fail_over(),
                }
                await speaking.end()
            lists = await made.lists(agents, next(iter(made.nodes.values())))
    wrong = violations(speaking.spoken, lists)
    return {**found, "turns": len(speaking.spoken), "wrong": [str(each) for each in wrong]}


def figures(asked: dict[str, Any], samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {"asked": asked}
    for way in (KILLED, LEFT):
        each = [sample[way] for sample in samples]
        found[way] = {
            "agents": results.summary([len(one["waits"]) for one in each]),
            "median": results.summary([results.percentile(one["waits"], 50) for one in each]),
            "longest": results.summary([max(one["waits"]) for one in each]),
            "elsewhere": results.summary([one["elsewhere"] for one in each]),
        }
    names = ("usual", "longest", "promoted", "first")
    found[DATABASE] = {name: results.summary([sample[DATABASE][name] for sample in samples]) for name in names}
    for way in (KILLED, LEFT, DATABASE):
        for name in ("turns", "again"):
            found[way][name] = results.summary([sample[way][name] for sample in samples])
    found["turns"] = sum(sample["turns"] for sample in samples)
    found["wrong"] = sum(len(sample["wrong"]) for sample in samples)
    return {**found, "samples": list(samples)}


def tables(figures: dict[str, Any]) -> list[Table]:
    asked, killed, left, database = (figures[name] for name in ("asked", KILLED, LEFT, DATABASE))
    rounds = f"Medians of {len(figures['samples'])} rounds (range)."
    return [
        Table(
            "A node of three is lost under load",
            ("", "SIGKILL", "SIGTERM"),
            [
                (label, *(spread(way[name], digits, unit) for way in (killed, left)))
                for label, name, digits, unit in (
                    ("its agents", "agents", 0, ""),
                    ("half of them have their next first token after at most", "median", 2, " s"),
                    ("the last one has it after", "longest", 2, " s"),
                    (f"turns that were acknowledged from then to {asked['between']:g} s later", "turns", 0, ""),
                    ("of them, asked more than once by their client", "again", 0, ""),
                    ("of these, asked first at another node's door", "elsewhere", 0, ""),
                )
            ],
            f"{rounds} {asked['agents']} agents and {asked['slots']} slots a node; a turn takes {asked['prefill']:g} s "
            f"to its first token and {asked['answer']:g} s more.",
        ),
        Table(
            "The database's primary is lost under load",
            ("", "SIGKILL"),
            [
                ("a turn takes at most, before", spread(database["usual"], 2, " s")),
                ("its standby is promoted after", spread(database["promoted"], 2, " s")),
                ("the first turn is acknowledged, after that", spread(database["first"], 2, " s")),
                ("the longest turn", spread(database["longest"], 2, " s")),
                ("turns asked more than once by their client", spread(database["again"], 0)),
            ],
            f"{rounds} Of {asked['detection']:g} s in which the loss is noticed; that is a setting of whoever "
            "watches the servers.",
        ),
        Table(
            "What clients were told, held against the ledger",
            ("", "all rounds"),
            [
                ("turns that were acknowledged", f"{figures['turns']}"),
                ("of them lost, doubled, or out of order", f"{figures['wrong']}"),
            ],
        ),
    ]


async def main(arguments: argparse.Namespace) -> None:
    asked = {
        name: getattr(arguments, name) for name in ("agents", "slots", "prefill", "answer", "detection", "between")
    }
    output, samples = arguments.output, list[dict[str, Any]]()
    try:
        for number in range(arguments.samples):
            samples.append(await sample(number, asked))
            results.write(output, figures(asked, samples))
    except postgres.NoServer as problem:
        raise SystemExit(f"{problem}; this benchmark kills one, which must be its own") from problem
    found = figures(asked, samples)
    results.conclude(output, found, tables(found))


def parser() -> argparse.ArgumentParser:
    found = options.parser(__doc__, "failover")
    found.add_argument("--detection", type=float, default=3.0, help="seconds until the standby is promoted")
    found.add_argument("--between", type=float, default=4.0, help="seconds before and after each")
    found.add_argument("--agents", type=options.at_least(1), default=5, help="for each node")
    found.add_argument("--slots", type=options.at_least(1), default=8, help="turns that a node computes at once")
    found.add_argument("--prefill", type=float, default=0.2, help="seconds to a turn's first token")
    found.add_argument("--answer", type=float, default=0.6, help="seconds from there to its end")
    found.add_argument("--samples", type=options.at_least(1), default=3, help="rounds")
    return found


if __name__ == "__main__":
    sys.exit(asyncio.run(main(parser().parse_args())))
