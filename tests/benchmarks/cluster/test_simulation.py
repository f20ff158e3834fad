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

GIVEN = inputs.read()
COSTS = inputs.costs(GIVEN)
ASKED: dict[str, Any] = {
    "nodes": 6,
    "agents": 1000,
    "load": 0.8,
    "seconds": 50,
    "seeds": 2,
    "bounds": [1.25],
    "prefill": 1.0,
    "heartbeat": 2,
}


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(simulation.measured(ASKED, GIVEN)))
    return found


def test_every_input_is_there_with_its_source() -> None:
    entries = json.loads(inputs.FILE.read_text())
    assert all(("value" in entry) == ("source" in entry) != ("result" in entry) for entry in entries.values())
    for each in inputs.sources():
        assert each["source"]
        value = GIVEN[each["name"]]
        assert min(value.values() if isinstance(value, dict) else [value]) > 0
    assert GIVEN["new_tokens"] == 50
    assert sorted(GIVEN["cold"]) == [1000, 4000, 16000, 32000]


def test_a_figure_that_a_result_does_not_have_is_said(tmp_path: Any) -> None:
    file = tmp_path / "inputs.json"
    file.write_text(json.dumps({"cold": {"result": "ttft-llama-3.1-8b-gpu", "figure": "lengths/*/colder"}}))
    with pytest.raises(KeyError, match="colder"):
        inputs.read(file)


def test_costs_are_in_the_order_of_tiers() -> None:
    for prompt, memory, disk, cold in zip(COSTS.prompt, COSTS.memory, COSTS.disk, COSTS.cold, strict=True):
        assert prompt < cold
        assert memory < disk < cold
    assert len(COSTS.step) == COSTS.slots + 1 == 33
    assert COSTS.step[32] == pytest.approx(32 / GIVEN["decode_32"])
    assert COSTS.capacity * COSTS.turn == pytest.approx(1)
    assert min(inputs.costs(GIVEN, fetched=False).network) == np.inf
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
    assert len({table.title for table in tables}) == len(tables) == 6
    for table in tables:
        assert {len(row) for row in table.rows} == {len(table.columns)}
    assert [row[0] for row in tables[0].rows] == list(policies())
    assert [len(table.rows) for table in tables[2:5]] == [9, 3, 3]
    by_policy = figures["ways"]["fetched"]
    assert by_policy["round robin"]["warm"]["median"] < 0.5 < by_policy["rendezvous"]["warm"]["median"]
    for way, computed in (("fetched", 0.0), ("alone", 1 - by_policy["round robin"]["warm"]["median"])):
        found = figures["ways"][way]["round robin"]
        assert found["computed"]["median"] == pytest.approx(computed, abs=0.1)


def test_primaries_are_shown_where_turns_are_enough(figures: dict[str, Any]) -> None:
    row = {"part": 0.5, "turns": 300.0, "mean": 0.001, "p99": 0.004, "last": 0.0}
    many = {**figures, "primaries": {"commits_8": {**figures["primaries"]["commits_8"], "one": [row]}}}
    *_, one, several, _ = simulation.tables(many)
    assert (one.title, several.title) == ("Where one primary ends", "How many primaries are needed")
    assert one.rows[0][:2] == ["603 commits/s, asked for 50%", "300"]
    assert "3 heartbeats/s" in several.note


def test_runs_are_the_same_each_time() -> None:
    one, two = (simulation.simulated(ASKED, GIVEN, "fetched", "bounded", 7, part=0.8) for _ in range(2))
    assert one == two
    assert one != simulation.simulated(ASKED, GIVEN, "fetched", "bounded", 8, part=0.8)
