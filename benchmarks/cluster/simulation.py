"""Many nodes, simulated: where turns run, what a lost node costs, where one primary of PostgreSQL ends.

    agentmem bench simulation [--nodes 1000] [--agents 10000000] [--load 0.85] [--seconds 60] [--seeds 1]
                              [--bounds 1.1 1.25 1.5 2 3] [--prefill 1]

A discrete-event simulation whose inputs are measured, but where they say that they are not: each is in the result with
its source. A load of 1 is what the nodes can do while every turn finds its KV in the pool. One node is lost after two
fifths of the time, as a machine that says nothing more, or as a process that was killed; the first fifth is not
counted. With --bounds the last policy is run at three loads with each of them for its bound.

What is simpler than it is: prompts that wait together are computed one after the other, where a worker computes short
ones in a batch; no answer is decoded while a prompt is computed; a node that is asked for KV has no work of it, and KV
that an agent left on nodes before the last does not count; a commit holds nobody up; agents are alike but for the
lengths of their memories, and none is new.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks import options, results
from benchmarks.cluster import primaries, shared_options
from benchmarks.cluster.events import Failure, Found, Load, Simulation
from benchmarks.cluster.inputs import Costs, Inputs, costs, read, sources
from benchmarks.cluster.policies import BUSIER, policies
from benchmarks.tables import Table

BOTH, ALONE, KILLED = "fetched", "alone", "killed"
WAYS = {
    BOTH: "KV from other nodes and S3",
    ALONE: "KV on its own node alone",
    KILLED: "KV from other nodes and S3, its process was killed",
}
LAST = "bounded, last holder"
LOADS = (0.7, 0.85, 0.95)
"""At which bounds are compared."""
HERE = ("pool", "page cache", "disk")
PAUSE, TURNS = 20.0, 10.0
"""Of a session: seconds between turns, and turns."""

Figures = dict[str, Any]


def load_of(agents: int, nodes: int, part: float, costs: Costs) -> Load:
    """Return what so many agents ask, where it is a part of what the nodes can do. Raises SystemExit for too few."""
    rate = part * costs.capacity * nodes
    idle = TURNS * (agents / rate - costs.stay(part)) - (TURNS - 1) * PAUSE
    if idle <= 0:
        raise SystemExit(f"{agents} agents cannot ask for {rate:.0f} turns/s: give more, or fewer nodes")
    return Load(agents, idle, PAUSE, TURNS)


def failure_of(inputs: Inputs, at: float, *, killed: bool) -> Failure:
    """Return the loss of a node: of a process, connections are refused at once."""
    lease, connect = (0.0, 0.0) if killed else (inputs["lease_seconds"], inputs["connect_seconds"])
    return Failure(at, 0, lease, connect, inputs["retry_seconds"], inputs["upload_seconds"])


def summary(found: Found, seconds: float) -> dict[str, float | None]:
    """One run's figures; `seconds` are those that count."""
    first, presence = np.array(found.first), np.array(found.presence)
    began = sum(found.sources.values())
    shares = {source: number / began for source, number in found.sources.items()}
    return {
        "finished": len(found.commits) / seconds,
        "tokens": found.answered / seconds,
        "mean": float(first.mean()),
        "p99": float(np.quantile(first, 0.99)),
        "imbalance": float(presence.max() / presence.mean()),
        "warm": sum(shares.get(source, 0.0) for source in HERE),
        "pool": shares.get("pool", 0.0),
        "fetched": shares.get("another node", 0.0) + shares.get("S3", 0.0),
        "computed": shares.get("computed", 0.0),
        "lost_turns": found.lost_turns,
        "lost_tokens": found.lost_tokens,
        "lost_mean": float(np.mean(found.lost)) if found.lost else None,
        "lost_max": max(found.lost, default=None),
        "moved": len(found.moved),
        "moved_mean": float(np.mean(found.moved)) if found.moved else None,
        "recomputed": found.recomputed,
    }


def simulated(
    asked: Mapping[str, Any], inputs: Inputs, way: str, policy: str, seed: int, *, part: float, busier: float = BUSIER
) -> Found:
    """One run."""
    cost = costs(inputs, fetched=way != ALONE, prefill=asked["prefill"])
    seconds, nodes = asked["seconds"], asked["nodes"]
    run = Simulation(
        nodes,
        cost,
        load_of(asked["agents"], nodes, part, cost),
        policies()[policy],
        seconds=seconds,
        begin=seconds / 5,
        heartbeat=inputs["heartbeat_seconds"],
        busier=busier,
        failure=failure_of(inputs, seconds * 2 / 5, killed=way == KILLED),
        seed=seed,
    )
    run.begin_in_sessions(part * cost.capacity * nodes)
    return run.run()


def measured(asked: Mapping[str, Any], inputs: Inputs) -> Figures:
    """All runs."""
    cost, counted = costs(inputs, prefill=asked["prefill"]), asked["seconds"] * 4 / 5
    found: Figures = {
        "asked": asked,
        "inputs": [{**each, "value": inputs[each["name"]]} for each in sources()],
        "capacity": cost.capacity,
        "rate": asked["load"] * cost.capacity * asked["nodes"],
        "tokens": float(np.mean(cost.tokens)),
        "ways": {},
        "bounds": [],
    }
    one = partial(simulated, asked, inputs)
    for way in WAYS:
        by_policy = found["ways"][way] = {}
        for policy in policies() if way != KILLED else (LAST,):
            runs = [one(way, policy, seed, part=asked["load"]) for seed in range(asked["seeds"])]
            by_policy[policy] = _over_seeds([summary(run, counted) for run in runs])
            if (way, policy) == (BOTH, LAST):
                times, agents = np.array(runs[0].commits), np.array(runs[0].committers)
                capacities = {name: inputs[name] for name in ("commits_8", "commits_32")}
                found["primaries"] = primaries.figures(times, agents, capacities, counted)
    for way in (BOTH, ALONE):
        for part in LOADS if asked["bounds"] else ():
            for bound in asked["bounds"]:
                runs = [one(way, LAST, seed, part=part, busier=bound) for seed in range(asked["seeds"])]
                figures = _over_seeds([summary(run, counted) for run in runs])
                found["bounds"].append({"way": way, "load": part, "bound": bound, **figures})
    return found


def _over_seeds(runs: Sequence[Mapping[str, float | None]]) -> dict[str, Any]:
    """Each figure with its spread, None where no run has it."""
    columns = {name: [run[name] for run in runs if run[name] is not None] for name in runs[0]}
    return {
        name: results.summary([float(one or 0) for one in each]) if each else None for name, each in columns.items()
    }


def tables(figures: Mapping[str, Any]) -> list[Table]:
    """Policies, the lost node, bounds, primaries, and the inputs."""
    asked = figures["asked"]
    where = f"{asked['nodes']:,} nodes, {asked['agents']:,} agents"
    found = [_policies(figures, way, where) for way in (BOTH, ALONE)]
    found.append(_lost(figures, where))
    found += [_bounds(figures, way, where) for way in (BOTH, ALONE) if figures["bounds"]]
    found += [_one(figures), _several(figures)] if any(each["one"] for each in figures["primaries"].values()) else []
    rows = [[each["what"], _value(each["value"], each["unit"]), each["source"]] for each in figures["inputs"]]
    note = "Numbers by tokens are of 1,000 to 32,000 tokens, between which the simulation interpolates."
    return [*found, Table("What is given", ("input", "value", "source"), rows, note)]


def _policies(figures: Mapping[str, Any], way: str, where: str) -> Table:
    asked = figures["asked"]
    rows = [
        [
            policy,
            _cell(found["finished"], ",.0f"),
            _cell(found["tokens"], ",.0f"),
            _cell(found["mean"], ".2f", " s"),
            _cell(found["p99"], ".2f", " s"),
            _cell(found["imbalance"], ".2f"),
            _share(found["warm"]),
            _share(found["pool"]),
            _share(found["fetched"]),
            _share(found["computed"]),
        ]
        for policy, found in figures["ways"][way].items()
    ]
    return Table(
        f"{WAYS[way]}: {where}, one node lost",
        (
            "policy",
            "turns/s",
            "tokens/s",
            "wait and first token, mean",
            "p99",
            "busiest node / mean",
            "warm",
            "of them in the pool",
            "fetched",
            "computed",
        ),
        rows,
        f"Asked for are {figures['rate']:,.0f} turns/s, {asked['load']:.0%} of what the nodes can do "
        f"({figures['capacity']:.2f} turns/s each). Memories are {figures['tokens']:,.0f} tokens in the mean. Counted "
        f"are {asked['seconds'] * 4 / 5:.0f} s, and turns without a first token at their end as if they had it then: "
        "where less is done than asked for, waits grow with the time.",
    )


def _lost(figures: Mapping[str, Any], where: str) -> Table:
    rows = [
        [
            f"{policy}: {WAYS[way]}",
            _cell(found["lost_turns"], ",.0f"),
            _cell(found["lost_mean"], ".1f", " s"),
            _cell(found["lost_max"], ".1f", " s"),
            _cell(found["lost_tokens"], ",.0f"),
            _cell(found["moved"], ",.0f"),
            _cell(found["moved_mean"], ".2f", " s"),
            _cell(found["recomputed"], ",.0f"),
        ]
        for way, by_policy in figures["ways"].items()
        for policy, found in by_policy.items()
    ]
    return Table(
        f"What the lost node costs: {where}",
        (
            "policy",
            "its turns",
            "their first token after the loss, mean",
            "longest",
            "tokens of answers lost",
            "its agents' next turns",
            "their wait and first token",
            "tokens of memory computed again",
        ),
        rows,
        "Unless its process was killed, it is a machine that vanishes: its streams end with its lease. Tokens are "
        f"computed again until {figures['asked']['seconds'] * 3 / 5:.0f} s after the loss. Where a first token is "
        "missing, no turn had it by then.",
    )


def _bounds(figures: Mapping[str, Any], way: str, where: str) -> Table:
    rows = [
        [
            f"{each['bound']:g} x the mean + 1, load {each['load']:.0%}",
            _cell(each["finished"], ",.0f"),
            _cell(each["mean"], ".2f", " s"),
            _cell(each["p99"], ".2f", " s"),
            _cell(each["imbalance"], ".2f"),
            _share(each["warm"]),
        ]
        for each in figures["bounds"]
        if each["way"] == way
    ]
    columns = ("passed over beyond", "turns/s", "wait and first token, mean", "p99", "busiest node / mean", "warm")
    return Table(f"The bound of {LAST}, {WAYS[way]}: {where}", columns, rows)


def _one(figures: Mapping[str, Any]) -> Table:
    rows = [
        [
            f"{found['capacity']:,} commits/s, asked for {each['part']:.0%}",
            f"{each['turns']:,.0f}",
            f"{each['turns'] / figures['rate'] * figures['asked']['nodes']:,.0f}",
            f"{each['mean'] * 1000:,.1f} ms",
            f"{each['p99'] * 1000:,.1f} ms",
            f"{each['last'] * 1000:,.1f} ms",
        ]
        for found in figures["primaries"].values()
        for each in found["one"]
    ]
    columns = ("one primary", "turns/s", "nodes", "a commit waits, mean", "p99", "the last one")
    note = "Commits of the simulated turns, of a part of the agents. Beyond what it can do, waits grow with the time."
    return Table("Where one primary ends", columns, rows, note)


def _several(figures: Mapping[str, Any]) -> Table:
    rows = [
        [
            f"{found['capacity']:,} commits/s",
            f"{found['several']['turns']:,.0f}",
            f"{found['several']['turns'] / found['capacity']:.1f}",
            f"{found['several']['shards']}",
            f"{found['several']['busiest']:.0%}",
            f"{found['several']['p99'] * 1000:,.1f} ms",
            f"{found['several']['largest']:,.0f}",
        ]
        for found in figures["primaries"].values()
    ]
    columns = (
        "a primary",
        "turns/s",
        "primaries' work",
        "needed",
        "busiest",
        "a commit waits, p99",
        "largest namespace",
    )
    heartbeats = figures["asked"]["nodes"] / figures["asked"]["heartbeat"]
    note = (
        f"Each used at most {primaries.USED:.0%}; {primaries.NAMESPACES:,} namespaces, sizes by Zipf's law with "
        f"exponent {primaries.SKEW}, each whole on one primary. Besides come {heartbeats:,.0f} heartbeats/s, which do "
        f"not wait for the disk; all nodes read all of them: {heartbeats * figures['asked']['nodes']:,.0f} rows/s."
    )
    return Table("How many primaries are needed", columns, rows, note)


def _cell(found: Mapping[str, float] | None, form: str, unit: str = "") -> str:
    """The median, with its spread where there is one."""
    if found is None:
        return ""
    median, low, high = (f"{found[name]:{form}}" for name in ("median", "min", "max"))
    return f"{median}{unit}" if low == high else f"{median}{unit} ({low}–{high})"


def _share(found: Mapping[str, float]) -> str:
    return f"{found['median']:.1%}"


def _value(value: Any, unit: str) -> str:
    values = value.values() if isinstance(value, Mapping) else [value]
    if unit == "s":
        return f"{', '.join(f'{each * 1000:,.0f}' for each in values)} ms"
    return f"{', '.join(f'{each:,.0f}' for each in values)} {unit}".strip()


def main(given: argparse.Namespace) -> int:
    """Simulate, print, write; the exit status."""
    inputs = read()
    asked = {
        **{name: getattr(given, name) for name in ("nodes", "agents", "load", "seconds", "seeds", "bounds", "prefill")},
        "heartbeat": inputs["heartbeat_seconds"],
    }
    figures = measured(asked, inputs)
    return results.conclude(given.output or f"simulation-{given.nodes}", figures, tables(figures))


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = options.parser(__doc__)
    found.add_argument("--nodes", type=options.at_least(2), default=1000)
    found.add_argument("--agents", type=options.at_least(1), default=10_000_000)
    found.add_argument("--load", type=float, default=0.85, help="of what the nodes can do")
    found.add_argument("--seconds", type=options.at_least(10), default=60, help="that are simulated")
    found.add_argument("--seeds", type=options.at_least(1), default=1, help="runs of each")
    found.add_argument("--bounds", type=float, nargs="+", default=[], help="to compare, besides")
    found.add_argument("--prefill", type=float, default=1.0, help="prompts are computed so many times as fast")
    shared_options.add(found, output="simulation-NODES")
    return found


if __name__ == "__main__":
    sys.exit(main(parser().parse_args()))
