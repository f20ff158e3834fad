"""The command's figures, at tiny sizes, and the inputs."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.cluster import inputs, simulation
from benchmarks.cluster.events import Failure, Found, Load, Simulation
from benchmarks.cluster.inputs import Costs
from benchmarks.cluster.policies import policies

GIVEN = inputs.GIVEN
COSTS = inputs.costs(GIVEN)
ASKED: dict[str, Any] = {
    "nodes": 6,
    "agents": 1000,
    "load": 0.8,
    "seconds": 50,
    "seeds": 2,
    "prefill": 1.0,
}


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(simulation.measured(ASKED, GIVEN)))
    return found


def test_costs_are_in_the_order_of_tiers() -> None:
    for prompt, memory, disk, cold in zip(COSTS.prompt, COSTS.memory, COSTS.disk, COSTS.cold, strict=True):
        assert prompt < cold
        assert memory < disk < cold
    assert len(COSTS.step) == COSTS.slots + 1 == 33
    assert COSTS.step[32] == pytest.approx(32 / GIVEN["decode_32"])
    assert COSTS.capacity * COSTS.turn == pytest.approx(1)
    assert inputs.costs(GIVEN, prefill=2).cold == pytest.approx([seconds / 2 for seconds in COSTS.cold])


@pytest.mark.parametrize("part", [0.5, 0.85])
def test_as_much_is_asked_for_as_was_meant(part: float) -> None:
    """And turns stay as long as is estimated, so that load is what it is called."""
    load = simulation.load_of(20_000, 8, part, COSTS)
    run = Simulation(8, COSTS, load, policies()["bounded, last holder"], seconds=300, begin=50, heartbeat=2, seed=1)
    run.begin_in_sessions(part * COSTS.capacity * 8)
    found = run.run()
    assert len(found.commits) / 250 == pytest.approx(part * COSTS.capacity * 8, rel=0.06)


def test_too_few_agents_are_refused() -> None:
    with pytest.raises(SystemExit, match="give more"):
        simulation.load_of(100, 32, 0.85, COSTS)


def lost(costs: Costs, **failure: float) -> Found:
    load = Load(2000, 30.0)
    return Simulation(4, costs, load, policies()["rendezvous"], seconds=90, failure=Failure(30.0, 2, **failure)).run()


def test_what_only_a_lost_node_had_is_computed_again() -> None:
    """All of it where there is no S3; else what was committed last."""
    slots = replace(COSTS, step=[0.0, *[0.001] * 64], prompt=[0.001] * len(COSTS.tokens))
    alone = lost(replace(slots, network=[np.inf] * 64, remote=[np.inf] * 64, cold=[0.001] * 64), retry=1.0)
    assert alone.sources["computed"] > 300
    assert alone.recomputed == pytest.approx(alone.sources["computed"] * np.mean(COSTS.tokens), rel=0.1)
    remote = lost(slots, uploaded=5.0)
    assert remote.sources["S3"] > 300
    late = remote.recomputed / (COSTS.new_tokens + COSTS.answer)
    assert 0 < late < remote.sources["S3"] / 2
    assert lost(slots, uploaded=0.0).recomputed == 0


def test_kv_stays_where_it_was_until_it_is_lost() -> None:
    found = lost(COSTS)
    assert found.sources["another node"] == 0
    assert found.sources["pool"] > found.sources["S3"] > 0


def test_what_is_said_of_it(figures: dict[str, Any]) -> None:
    tables = simulation.tables(figures)
    for table in tables:
        assert {len(row) for row in table.rows} == {len(table.columns)}
    assert [row[0] for row in tables[0].rows] == [row[0] for row in tables[1].rows] == list(policies())
    found = figures["policies"]
    assert found["round robin"]["warm"]["median"] < 0.5 < found["rendezvous"]["warm"]["median"]
    assert found["round robin"]["computed"]["median"] == pytest.approx(0.0, abs=0.1)


def test_runs_are_the_same_each_time() -> None:
    one, two = (simulation.simulated(ASKED, GIVEN, "bounded", 7) for _ in range(2))
    assert one == two
    assert one != simulation.simulated(ASKED, GIVEN, "bounded", 8)
