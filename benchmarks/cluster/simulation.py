"""Many nodes, simulated: where turns run, and what a lost node costs.

    agentmem bench simulation [--nodes 1000] [--agents 10000000] [--load 0.85] [--seconds 60] [--seeds 1] [--prefill 1]

A load of 1 is what the nodes can do while every turn finds its KV in the pool. A node vanishes after two fifths of the
time; the first fifth is not counted. Simpler than it is: prompts are not batched, no answer is decoded meanwhile, KV
from another node costs that node nothing, and agents differ in the lengths of memories alone.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import options, results
from benchmarks.cluster.events import Failure, Found, Load, Simulation
from benchmarks.cluster.inputs import GIVEN, Costs, Inputs, costs
from benchmarks.cluster.policies import policies
from benchmarks.tables import Table

HERE = ("pool", "page cache", "disk")
PAUSE, TURNS = 20.0, 10.0
"""Seconds between turns of a session, and turns."""

Figures = dict[str, Any]


def load_of(agents: int, nodes: int, part: float, costs: Costs) -> Load:
    """Return what agents ask at a part of what nodes can do. Raises SystemExit."""
    rate = part * costs.capacity * nodes
    idle = TURNS * (agents / rate - costs.stay(part)) - (TURNS - 1) * PAUSE
    if idle <= 0:
        raise SystemExit(f"{agents} agents cannot ask for {rate:.0f} turns/s: give more, or fewer nodes")
    return Load(agents, idle, PAUSE, TURNS)


def failure_of(inputs: Inputs, at: float) -> Failure:
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
    asked = figures["asked"]
    where = f"{asked['nodes']:,} nodes, {asked['agents']:,} agents"
    return [_policies(figures, where), _lost(figures, where)]


def _policies(figures: Mapping[str, Any], where: str) -> Table:
    asked = figures["asked"]
    cells = (
        ("turns/s", "finished", ",.0f", ""),
        ("tokens/s", "tokens", ",.0f", ""),
        ("wait and first token, mean", "mean", ".2f", " s"),
        ("p99", "p99", ".2f", " s"),
        ("busiest node / mean", "imbalance", ".2f", ""),
        ("warm", "warm", ".1%", ""),
        ("of them in the pool", "pool", ".1%", ""),
        ("fetched", "fetched", ".1%", ""),
        ("computed", "computed", ".1%", ""),
    )
    return _table(
        f"Where turns run: {where}, one node lost",
        figures,
        cells,
        f"Asked for are {figures['rate']:,.0f} turns/s, {asked['load']:.0%} of what the nodes can do "
        f"({figures['capacity']:.2f} turns/s each). Memories are {figures['tokens']:,.0f} tokens in the mean. Counted "
        f"are {asked['seconds'] * 4 / 5:.0f} s, and turns without a first token at their end as if they had it then: "
        "where less is done than asked for, waits grow with the time.",
    )


def _lost(figures: Mapping[str, Any], where: str) -> Table:
    cells = (
        ("its turns", "lost_turns", ",.0f", ""),
        ("their first token after the loss, mean", "lost_mean", ".1f", " s"),
        ("longest", "lost_max", ".1f", " s"),
        ("tokens of answers lost", "lost_tokens", ",.0f", ""),
        ("its agents' next turns", "moved", ",.0f", ""),
        ("their wait and first token", "moved_mean", ".2f", " s"),
        ("tokens of memory computed again", "recomputed", ",.0f", ""),
    )
    return _table(
        f"What the lost node costs: {where}",
        figures,
        cells,
        "It is a machine that vanishes: its streams end with its lease. Tokens are "
        f"computed again until {figures['asked']['seconds'] * 3 / 5:.0f} s after the loss. Where a first token is "
        "missing, no turn had it by then.",
    )


def _table(title: str, figures: Mapping[str, Any], cells: Sequence[tuple[str, str, str, str]], note: str) -> Table:
    rows = [
        [policy, *(_cell(found[name], form, unit) for _, name, form, unit in cells)]
        for policy, found in figures["policies"].items()
    ]
    return Table(title, ("policy", *(column for column, *_ in cells)), rows, note)


def _cell(found: Mapping[str, float] | None, form: str, unit: str) -> str:
    if found is None:
        return ""
    median, low, high = (f"{found[name]:{form}}" for name in ("median", "min", "max"))
    return f"{median}{unit}" if low == high else f"{median}{unit} ({low}–{high})"


def main(given: argparse.Namespace) -> int:
    asked = {name: getattr(given, name) for name in ("nodes", "agents", "load", "seconds", "seeds", "prefill")}
    figures = measured(asked, GIVEN)
    return results.conclude(given.output or f"simulation-{given.nodes}", figures, tables(figures))


def parser() -> argparse.ArgumentParser:
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
