"""Nodes and events against queueing theory, where it has a closed form: means over seeds, which are fixed.

Agents are so many that what they ask is a Poisson stream. AGENTMEM_FULL_MATRIX=1 runs eight times as many turns.
"""

import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.cluster.events import Failure, Found, Load, Simulation
from benchmarks.cluster.inputs import Costs
from benchmarks.cluster.policies import policies, rendezvous
from tests.full_matrix import FULL

AGENTS = 500_000
TURNS = 200_000 if FULL else 25_000
NEAR = 0.06 if FULL else 0.07
"""What a mean may be off, as a part of it: with 16 slots one of 200,000 turns has a standard deviation of 4 %."""
FREE = Costs([1.0], [0.0], [0.0], [0.0], [0.0], [0.0], [0.0], [0.0, 1.0], answer=1.0)
"""One slot, in which nothing takes time but an answer: 1 s in the mean."""


def run(costs: Costs, rate: float, turns: int, nodes: int = 1, seed: int = 1) -> Found:
    found = Simulation(
        nodes, costs, Load(AGENTS, AGENTS / rate), rendezvous, seconds=turns / rate, begin=turns / rate / 20, seed=seed
    ).run()
    assert found.arrived == found.finished + found.unfinished
    return found


def waited(costs: Costs, rate: float, nodes: int = 1) -> float:
    """Mean seconds to the first token."""
    return float(np.mean([np.mean(run(costs, rate, TURNS, nodes, seed).first) for seed in (1, 2, 3)]))


def erlang_c(servers: int, offered: float) -> float:
    """The probability of waiting in M/M/c."""
    each = [offered**n / math.factorial(n) for n in range(servers)]
    last = offered**servers / math.factorial(servers) * servers / (servers - offered)
    return last / (sum(each) + last)


@pytest.mark.slow
@pytest.mark.parametrize(("servers", "used"), [(1, 0.5), (1, 0.7), (4, 0.7), (16, 0.8)])
def test_slots_are_servers(servers: int, used: float) -> None:
    """M/M/c: nothing takes time but answers, whose steps are as long for many as for one."""
    costs = replace(FREE, step=[0.0, *[1.0] * servers])
    expected = erlang_c(servers, used * servers) / (servers * (1 - used))
    assert waited(costs, used * servers) == pytest.approx(expected, rel=NEAR)


@pytest.mark.slow
def test_prompts_are_computed_one_after_the_other() -> None:
    """M/G/1, by Pollaczek and Khinchine: prompts of two lengths, no answers, and slots that are not the limit."""
    costs = replace(FREE, tokens=[1.0, 2.0], prompt=[0.4, 1.6], answer=0.0, step=[0.0, *[1.0] * 500])
    costs = replace(costs, **{name: [0.0, 0.0] for name in ("cold", "memory", "disk", "network", "remote")})
    rate, mean, square = 0.7, 1.0, (0.4**2 + 1.6**2) / 2
    assert waited(costs, rate) == pytest.approx(mean + rate * square / (2 * (1 - rate * mean)), rel=NEAR)


@pytest.mark.slow
def test_a_disk_reads_for_one_turn_after_the_other() -> None:
    """M/D/1."""
    costs = replace(FREE, disk=[1.0], answer=0.0, step=[0.0, *[1.0] * 500], memory_agents=0, pool_agents=0)
    assert waited(costs, 0.7) == pytest.approx(1 + 0.7 / (2 * (1 - 0.7)), rel=NEAR)


@pytest.mark.parametrize("used", [0.5, 0.8])
def test_answers_share_the_gpu(used: float) -> None:
    """M/G/1 with processor sharing: a step takes as long as there are agents in it."""
    costs = replace(FREE, step=[float(agents) for agents in range(501)])
    found = run(costs, used, 2 * TURNS)
    assert sum(found.presence) / len(found.commits) == pytest.approx(1 / (1 - used), rel=NEAR)


@pytest.mark.slow
def test_answers_stand_still_while_a_prompt_is_computed() -> None:
    """One turn after the other, so that each takes its prompt and its answer; M/G/1 again, with one slot."""
    costs = replace(FREE, prompt=[0.5], answer=0.5)
    rate, square = 0.7, 0.5**2 + 2 * 0.5 * 0.5 + 2 * 0.5**2
    assert waited(costs, rate) == pytest.approx(0.5 + rate * square / (2 * (1 - rate)), rel=NEAR)


@pytest.mark.slow
def test_nodes_of_rendezvous_are_as_many_queues() -> None:
    """Each of 8 nodes is an M/M/1 with an eighth of the agents."""
    assert waited(FREE, 8 * 0.6, nodes=8) == pytest.approx(0.6 / (1 - 0.6), rel=NEAR)


def test_agents_that_wait_ask_for_nothing() -> None:
    """A closed system, as M/M/1 with finitely many sources (the machine repairman), by its probabilities."""
    agents, idle = 12, 10.0
    weights = [math.factorial(agents) / math.factorial(agents - n) * (1 / idle) ** n for n in range(agents + 1)]
    done = 1 - weights[0] / sum(weights)
    found = Simulation(1, FREE, Load(agents, idle), rendezvous, seconds=TURNS, seed=3).run()
    assert len(found.commits) / TURNS == pytest.approx(done, rel=0.03)


def test_sessions_have_their_turns() -> None:
    """Of agents that never wait: a session of 5 turns with pauses of 2 s, and 10 s before the next."""
    costs = replace(FREE, step=[0.0, *[1.0] * 100], answer=1.0)
    found = Simulation(1, costs, Load(40, 10.0, 2.0, 5.0), rendezvous, seconds=3000, seed=4).run()
    assert found.finished / 3000 / 40 == pytest.approx(5 / (10 + 5 * 1 + 4 * 2), rel=0.03)


@pytest.mark.parametrize("heartbeat", [0.0, 2.0])
@pytest.mark.parametrize("lease", [0.0, 10.0])
@pytest.mark.parametrize("name", policies())
def test_no_turn_is_lost(name: str, lease: float, heartbeat: float) -> None:
    """Nor is any there twice, with a node lost in the middle of an overload, at every moment afterwards."""
    costs = replace(FREE, prompt=[0.02], cold=[0.5], disk=[0.1], network=[0.1], step=[0.0, 0.5, 0.6], remote=[0.2])
    for seconds in (19.0, 20.0, 25.0, 30.5, 31.5, 60.0):
        load, failure = Load(400, 30.0, 5.0, 3.0), Failure(20.0, 1, lease, 2.0, 1.0)
        simulation = Simulation(
            4, costs, load, policies()[name], seconds=seconds, heartbeat=heartbeat, failure=failure, seed=5
        )
        simulation.begin_in_sessions(2.0)
        found = simulation.run()
        assert found.arrived == found.finished + found.unfinished
        assert len(found.first) == found.arrived
        assert found.arrived > 60
        assert min(found.first) >= 0
        assert len(found.presence) == (4 if seconds < 20 else 3)
        assert min(found.lost, default=math.inf) >= lease + 1
        assert len(found.lost) <= found.lost_turns
