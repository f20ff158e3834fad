"""Policies, and what gateways know."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.cluster.gateways import Gateways
from benchmarks.cluster.policies import NOWHERE, View, bounded, last_holder, limit, order, policies, rendezvous


def view(loads: list[int], lost: int | None = None) -> View:
    return View([node != lost for node in range(len(loads))], loads.__getitem__, limit(sum(loads), len(loads)))


@given(st.integers(0, 10**7), st.integers(1, 50), st.integers(0, 5))
def test_an_order_has_all_nodes_once_and_stays(agent: int, nodes: int, seed: int) -> None:
    assert sorted(order(agent, nodes, seed)) == list(range(nodes))
    assert list(order(agent, nodes, seed)) == list(order(agent, nodes, seed))


def test_orders_are_even_in_their_first_and_second_nodes() -> None:
    pairs = Counter(tuple(order(agent, 5))[:2] for agent in range(20_000))
    assert len(pairs) == 20
    assert max(abs(number - 1000) for number in pairs.values()) < 130  # 4 standard deviations


@given(st.integers(0, 10**6), st.integers(0, 9))
def test_only_agents_of_a_lost_node_move(agent: int, lost: int) -> None:
    before = rendezvous(agent, NOWHERE, view([0] * 10), order(agent, 10))
    after = rendezvous(agent, NOWHERE, view([0] * 10, lost), order(agent, 10))
    assert after != lost
    assert before == lost or after == before


@given(st.lists(st.integers(0, 40), min_size=2, max_size=12), st.integers(0, 10**6), st.integers(-1, 1))
def test_busy_nodes_are_passed_over(loads: list[int], agent: int, last: int) -> None:
    seen = view(loads)
    node = bounded(agent, last, seen, order(agent, len(loads)))
    assert loads[node] <= seen.limit
    before = list(order(agent, len(loads)))
    assert all(loads[other] > seen.limit for other in before[: before.index(node)])
    kept = last_holder(agent, last, seen, order(agent, len(loads)))
    assert kept == (last if last != NOWHERE and loads[last] <= seen.limit else node)


def test_where_all_are_busy_it_is_the_first_that_is_ready() -> None:
    seen = View([False, True, True], [0, 9, 9].__getitem__, 5.0)
    expected = next(node for node in order(7, 3) if node)
    assert bounded(7, NOWHERE, seen, order(7, 3)) == last_holder(7, 0, seen, order(7, 3)) == expected


def test_round_robin_takes_turns() -> None:
    policy = policies()["round robin"]
    chosen = [policy(agent, 0, view([0] * 4, lost=2), order(agent, 4)) for agent in range(6)]
    assert chosen == [1, 3, 0, 1, 3, 0]


def test_a_gateway_knows_its_own_turns_and_others_by_heartbeats() -> None:
    gateways = Gateways(2, heartbeats=True)
    gateways.came(0, 1)
    assert [gateways.view(gateway).load(1) for gateway in (0, 1)] == [1, 0]
    assert [gateways.view(gateway).limit for gateway in (0, 1)] == [limit(1, 2), limit(0, 2)]
    gateways.beat()
    assert [gateways.view(gateway).load(1) for gateway in (0, 1)] == [2, 1], "sent just before, it may not be counted"
    gateways.beat()
    assert [gateways.view(gateway).load(1) for gateway in (0, 1)] == [1, 1]
    gateways.left(1)
    assert gateways.view(0).load(1) == 1
    gateways.gone(1)
    assert (list(gateways.view(0).ready), gateways.view(0).limit) == ([True, False], limit(0, 1))


def test_without_heartbeats_all_is_known() -> None:
    gateways = Gateways(2, heartbeats=False)
    gateways.came(0, 1)
    assert (gateways.view(1).load(1), gateways.view(1).limit) == (1, limit(1, 2))
