"""Where turns go: properties that hold for all clusters, and the order of the reasons."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem.validation import AgentKey
from gateway.cluster.router import BUSIER, SMALL, Located, NodeView, Reason, candidates, for_anyone

KEY = AgentKey("team", "ada", "demo")
NAMES = st.sampled_from("abcdefgh")
MODELS = st.dictionaries(st.sampled_from(["demo", "large"]), st.sampled_from(["", "f1", "f2"]), max_size=2)
NODES = st.lists(
    st.builds(NodeView, NAMES, st.just("x:1"), st.booleans(), st.integers(0, 40), MODELS),
    max_size=8,
    unique_by=lambda node: node.name,
)
KEYS = st.builds(AgentKey, st.sampled_from(["n", "m"]), st.text(max_size=4), st.sampled_from(["demo", "large", ""]))
LOCATED = st.builds(Located, st.one_of(st.just(""), NAMES), st.one_of(st.just(""), NAMES))


def node(name: str, load: int = 0, print_: str = "f1", *, ready: bool = True) -> NodeView:
    return NodeView(name, f"{name}:1", ready, load, {"demo": print_})


HOME = candidates(KEY, [node(name) for name in "bc"], Located(), "b").nodes[0]
"""The node of `KEY` by rendezvous hashing, among b and c, and with a."""


@given(KEYS, NODES, LOCATED, NAMES)
def test_only_nodes_that_can_run_the_turn_are_candidates(
    key: AgentKey, nodes: list[NodeView], located: Located, own: str
) -> None:
    by_name = {each.name: each for each in nodes}
    route = candidates(key, nodes, located, own)
    assert route.nodes
    assert len(set(route.nodes)) == len(route.nodes)
    if route.reason is Reason.LOCAL:
        assert route.nodes == [own]
        return
    chosen = [by_name[name] for name in route.nodes]
    assert all(each.ready for each in chosen)
    assert all(not key.model_id or key.model_id in each.models for each in chosen)
    assert len({each.models.get(key.model_id, "") for each in chosen} - {""}) <= 1


@given(KEYS, NODES, LOCATED, NAMES)
def test_the_first_is_within_the_bound_unless_a_turn_of_the_agent_runs_there(
    key: AgentKey, nodes: list[NodeView], located: Located, own: str
) -> None:
    route = candidates(key, nodes, located, own)
    by_name = {each.name: each for each in nodes}
    if route.reason in (Reason.LAST, Reason.RENDEZVOUS):
        loads = [by_name[name].load for name in route.nodes]
        assert loads[0] <= BUSIER * sum(loads) / len(loads) + SMALL
    if route.reason is Reason.CLAIM:
        assert route.nodes[0] == located.running_on


@given(KEYS, NODES, LOCATED, NAMES, st.integers())
def test_all_gateways_that_know_the_same_decide_the_same(
    key: AgentKey, nodes: list[NodeView], located: Located, own: str, seed: int
) -> None:
    shuffled = nodes[:]
    Random(seed).shuffle(shuffled)
    assert candidates(key, nodes, located, own) == candidates(key, shuffled, located, own)


def test_a_node_that_leaves_moves_only_its_own_agents() -> None:
    nodes = [node(name) for name in "abcdefgh"]
    keys = [AgentKey("team", f"agent-{number}", "demo") for number in range(500)]

    def homes(among: list[NodeView]) -> dict[AgentKey, str]:
        return {key: candidates(key, among, Located(), "a").nodes[0] for key in keys}

    before, after = homes(nodes), homes(nodes[:-1])
    assert {before[key] for key in keys} == {each.name for each in nodes}
    assert all(after[key] == before[key] for key in keys if before[key] != "h")


@pytest.mark.parametrize(
    ("load_of_a", "is_ready", "located", "first", "reason"),
    [
        (0, True, Located("b", "c"), "b", Reason.CLAIM),
        (0, True, Located("", "c"), "c", Reason.LAST),
        (1, True, Located("", "a"), "a", Reason.LAST),  # one turn is not too many where the others have none
        (20, True, Located("", "a"), HOME, Reason.RENDEZVOUS),
        (20, True, Located("a", ""), "a", Reason.CLAIM),
        (0, True, Located(), HOME, Reason.RENDEZVOUS),
        (0, False, Located("a", "a"), HOME, Reason.RENDEZVOUS),
    ],
)
def test_the_reasons_in_their_order(
    load_of_a: int, is_ready: bool, located: Located, first: str, reason: Reason
) -> None:
    nodes = [node("a", load_of_a, ready=is_ready), node("b"), node("c")]
    route = candidates(KEY, nodes, located, "a")
    assert (route.nodes[0], route.reason) == (first, reason)
    assert sorted(route.nodes) == [each.name for each in nodes if each.ready]
    assert load_of_a < 20 or located.running_on or route.nodes[-1] == "a"


def test_nodes_of_another_fingerprint_than_the_holder_are_no_candidates() -> None:
    nodes = [node("a", print_="f2"), node("b"), node("c"), node("d", print_="")]
    assert set(candidates(KEY, nodes, Located("", "a"), "b").nodes) == {"a", "d"}
    assert set(candidates(KEY, nodes, Located(), "b").nodes) == {"b", "c", "d"}


def test_a_node_alone_runs_what_no_other_can() -> None:
    assert candidates(KEY, [], Located(), "a") == (["a"], Reason.LOCAL)
    assert for_anyone("demo", [node("a", ready=False)], "a", Random(1)) == (["a"], Reason.LOCAL)


@given(NODES, st.integers())
def test_a_turn_of_no_agent_goes_to_the_less_busy_of_two(nodes: list[NodeView], seed: int) -> None:
    route = for_anyone("", nodes, "a", Random(seed))
    if route.reason is Reason.LOAD and len(route.nodes) > 1:
        load = {each.name: each.load for each in nodes}
        assert load[route.nodes[0]] <= load[route.nodes[1]]
