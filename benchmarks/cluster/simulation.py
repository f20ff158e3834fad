"""Many nodes, simulated: where turns run, and what a lost node costs.

    agentmem bench simulation [--nodes 1000] [--agents 10000000] [--load 0.85] [--seconds 60] [--seeds 1] [--prefill 1]

A discrete-event simulation whose inputs are measured, but where they say that they are not. A load of 1 is what the
nodes can do while every turn finds its KV in the pool. One node is lost after two fifths of the time, as a machine that
says nothing more; the first fifth is not counted.

What is simpler than it is: prompts that wait together are computed one after the other, where a worker computes short
ones in a batch; no answer is decoded while a prompt is computed; a node that is asked for KV has no work of it, and KV
that an agent left on nodes before the last does not count; agents are alike but for the lengths of their memories, and
none is new.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import options, results
from benchmarks.cluster.events import Failure, Found, Load, Simulation
from benchmarks.cluster.inputs import GIVEN, Costs, Inputs, costs, read
from benchmarks.cluster.policies import policies
from benchmarks.tables import Table

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


def failure_of(inputs: Inputs, at: float) -> Failure:
    """Return the loss of a node at a time."""
    names = ("lease", "connect", "retry", "upload")
    return Failure(at, 0, *(inputs[f"{name}_seconds"] for name in names))


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


def simulated(asked: Mapping[str, Any], inputs: Inputs, policy: str, seed: int) -> Found:
    """One run."""
    cost = costs(inputs, prefill=asked["prefill"])
    part, seconds, nodes = asked["load"], asked["seconds"], asked["nodes"]
    run = Simulation(
        nodes,
        cost,
        load_of(asked["agents"], nodes, part, cost),
        policies()[policy],
        seconds=seconds,
        begin=seconds / 5,
        heartbeat=inputs["heartbeat_seconds"],
        failure=failure_of(inputs, seconds * 2 / 5),
        seed=seed,
    )
    run.begin_in_sessions(part * cost.capacity * nodes)
    return run.run()


def measured(asked: Mapping[str, Any], inputs: Inputs) -> Figures:
    """All runs."""
    cost, counted = costs(inputs, prefill=asked["prefill"]), asked["seconds"] * 4 / 5
    return {
        "asked": asked,
        "inputs": inputs,
        "capacity": cost.capacity,
        "rate": asked["load"] * cost.capacity * asked["nodes"],
        "tokens": float(np.mean(cost.tokens)),
        "policies": {
            policy: _over_seeds(
                [summary(simulated(asked, inputs, policy, seed), counted) for seed in range(asked["seeds"])]
            )
            for policy in policies()
        },
    }


def _over_seeds(runs: Sequence[Mapping[str, float | None]]) -> dict[str, Any]:
    """Each figure with its spread, None where no run has it."""
    columns = {name: [run[name] for run in runs if run[name] is not None] for name in runs[0]}
    return {
        name: results.summary([float(one or 0) for one in each]) if each else None for name, each in columns.items()
    }


def tables(figures: Mapping[str, Any]) -> list[Table]:
    """Policies, the lost node, and the inputs."""
    asked = figures["asked"]
    where = f"{asked['nodes']:,} nodes, {asked['agents']:,} agents"
    rows = [[each.what, _value(each.value, each.unit), each.source] for each in GIVEN.values()]
    note = "Numbers by tokens are of 1,000 to 32,000 tokens, between which the simulation interpolates."
    given = Table("What is given", ("input", "value", "source"), rows, note)
    return [_policies(figures, where), _lost(figures, where), given]


def _policies(figures: Mapping[str, Any], where: str) -> Table:
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
        for policy, found in figures["policies"].items()
    ]
    return Table(
        f"Where turns run: {where}, one node lost",
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
            policy,
            _cell(found["lost_turns"], ",.0f"),
            _cell(found["lost_mean"], ".1f", " s"),
            _cell(found["lost_max"], ".1f", " s"),
            _cell(found["lost_tokens"], ",.0f"),
            _cell(found["moved"], ",.0f"),
            _cell(found["moved_mean"], ".2f", " s"),
            _cell(found["recomputed"], ",.0f"),
        ]
        for policy, found in figures["policies"].items()
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
        "It is a machine that vanishes: its streams end with its lease. Tokens are "
        f"computed again until {figures['asked']['seconds'] * 3 / 5:.0f} s after the loss. Where a first token is "
        "missing, no turn had it by then.",
    )


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
    asked = {name: getattr(given, name) for name in ("nodes", "agents", "load", "seconds", "seeds", "prefill")}
    figures = measured(asked, read())
    return results.conclude(given.output or f"simulation-{given.nodes}", figures, tables(figures))


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = options.parser(__doc__)
    found.add_argument("--nodes", type=options.at_least(2), default=1000)
    found.add_argument("--agents", type=options.at_least(1), default=10_000_000)
    found.add_argument("--load", type=float, default=0.85, help="of what the nodes can do")
    found.add_argument("--seconds", type=options.at_least(10), default=60, help="that are simulated")
    found.add_argument("--seeds", type=options.at_least(1), default=1, help="runs of each")
    found.add_argument("--prefill", type=float, default=1.0, help="prompts are computed so many times as fast")
    found.add_argument("--output", help="name of the file under benchmarks/results (default: simulation-NODES)")
    return found


if __name__ == "__main__":
    sys.exit(main(parser().parse_args()))
