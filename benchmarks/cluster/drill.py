"""Three nodes under faults, until so many turns were taken: what clients were told, held against the ledger.

    agentmem bench drill [--turns 10000] [--seed 0]

Real stores and gateways with scripted workers, on a PostgreSQL with a synchronous standby. Clients ask any gateway, in
every other round any worker, too, and ask again under the same request_id. In each round: kills, stops, lost and held
packets, a clock that jumps, and a failover of the database. The exit status is 1 where a history is wrong.
"""

import argparse
import asyncio
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks import options, results
from benchmarks.cluster import postgres
from benchmarks.cluster.faults import FAULTS, SET_CLOCKS, Pace, all_faults, clock, drilling
from benchmarks.cluster.history import Append, Operation, Read, violations
from benchmarks.cluster.postgres import paired
from benchmarks.live import scratch
from benchmarks.nodes import Node
from benchmarks.tables import Table

_LABELS = {
    "cut_off": "a node is cut off from PostgreSQL",
    "lose_answers": "a node loses PostgreSQL's answers",
    "hold_packets": "a node's packets to PostgreSQL are held",
    "kill_worker": "a worker is killed",
    "kill_store": "a store is killed",
    "kill_gateway": "a gateway is killed",
    "kill_node": "a node is killed",
    "stop_worker": "a worker is stopped",
    "stop_store": "a store is stopped",
    "set_clocks": "a clock jumps",
    "fail_over": "the standby takes over",
}


async def one_round(pace: Pace, number: int, made: Callable[..., Node] = Node) -> dict[str, Any]:
    """Inject every fault once, on new servers. Raises NoServer."""
    began = time.monotonic()
    with scratch() as root, paired() as pair:
        async with drilling(pair, own := clock(root), pace, number, gateways_only=number % 2 == 1, made=made) as drill:
            faults = await all_faults(drill, number)
            history, lists = await drill.end(), await drill.lists()
    if not own:
        faults.remove(SET_CLOCKS)
    wrong = [str(each) for each in violations(history, lists)]
    again = sum(client.again for client in drill.clients)
    listed = sum(map(len, lists.values()))
    found = {"faults": dict(Counter(faults)), "again": again, "listed": listed, "wrong": wrong}
    return {**counts(history), **found, "seconds": time.monotonic() - began}


def counts(history: Sequence[Operation]) -> dict[str, int]:
    told = Counter(str(each.outcome) for each in history if isinstance(each, Append))
    reads = sum(isinstance(each, Read) for each in history)
    return {"turns": told.total(), **{name: told[name] for name in ("ok", "failed", "unknown")}, "reads": reads}


_SUMMED = ("turns", "ok", "failed", "unknown", "reads", "again", "listed", "seconds")


def figures(asked: Mapping[str, Any], rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    faults: Counter[str] = Counter()
    for each in rounds:
        faults.update(each["faults"])
    return {
        "asked": dict(asked),
        **{name: sum(each[name] for each in rounds) for name in _SUMMED},
        "faults": {name: faults[name] for name in FAULTS},
        "wrong": sum(len(each["wrong"]) for each in rounds),
        "rounds": list(rounds),
    }


def tables(figures: dict[str, Any]) -> list[Table]:
    minutes = figures["seconds"] / 60
    return [
        Table(
            "What clients of three nodes under faults were told",
            ("", "turns"),
            [
                ("turns", f"{figures['turns']:,}"),
                ("acknowledged", f"{figures['ok']:,}"),
                ("of them, after an attempt that was not", f"{figures['again']:,}"),
                ("refused, and never to be in a ledger", f"{figures['failed']:,}"),
                ("of unknown outcome", f"{figures['unknown']:,}"),
                ("in the ledgers in the end", f"{figures['listed']:,}"),
                ("lost, doubled, out of order, or computed with another memory", f"{figures['wrong']:,}"),
            ],
            f"In {len(figures['rounds'])} rounds and {minutes:.0f} minutes; {figures['reads']:,} reads were checked, "
            "too.",
        ),
        Table(
            "Meanwhile",
            ("", "times"),
            [(_LABELS[name], f"{times}") for name, times in figures["faults"].items()],
        ),
    ]


async def main(arguments: argparse.Namespace) -> int:
    asked = {name: getattr(arguments, name) for name in ("turns", "between", "during", "seed")}
    pace, rounds = Pace(arguments.between, arguments.during), list[dict[str, Any]]()
    output, found = arguments.output, dict[str, Any]()
    while sum(each["turns"] for each in rounds) < arguments.turns:
        number = arguments.seed + len(rounds)
        try:
            rounds.append(await one_round(pace, number))
        except postgres.NoServer as problem:
            raise SystemExit(f"{problem}; this drill kills one, which must be its own") from problem
        found = figures(asked, rounds)
        results.write(output, found)
        print(f"round {number}: {rounds[-1]['turns']} turns, {len(rounds[-1]['wrong'])} wrong", flush=True)
        for wrong in rounds[-1]["wrong"]:
            print(wrong)
    results.conclude(output, found, tables(found))
    return 1 if found["wrong"] else 0


def parser() -> argparse.ArgumentParser:
    found = options.parser(__doc__, "drill")
    found.add_argument("--turns", type=options.at_least(1), default=10_000, help="at least so many, in whole rounds")
    found.add_argument("--between", type=options.at_least(1), default=200, help="turns and reads between two faults")
    found.add_argument("--during", type=options.at_least(1), default=100, help="and while one lasts")
    found.add_argument("--seed", type=options.at_least(0), default=0, help="the number of the first round")
    return found


if __name__ == "__main__":
    sys.exit(asyncio.run(main(parser().parse_args())))
