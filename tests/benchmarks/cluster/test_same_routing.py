"""The simulation's policy chooses as the gateway's router does, given the order of nodes that its hash makes."""

from hypothesis import assume, given
from hypothesis import strategies as st

from benchmarks.cluster import policies
from gateway.cluster import router

NODES = st.lists(st.tuples(st.integers(0, 40), st.booleans()), min_size=1, max_size=12)


@given(NODES, st.integers(0, 10**6), st.integers(policies.NOWHERE, 11))
def test_they_agree(loads: list[tuple[int, bool]], agent: int, last: int) -> None:
    assume(last < len(loads) and any(ready for _, ready in loads))
    key = router.AgentKey("namespace", str(agent), "model")
    nodes = [router.NodeView(str(n), "", ready, load, {"model": "f"}) for n, (load, ready) in enumerate(loads)]
    able = [load for load, ready in loads if ready]
    view = policies.View(
        [ready for _, ready in loads], lambda node: loads[node][0], policies.limit(sum(able), len(able))
    )
    order = sorted(range(len(nodes)), key=lambda node: router.weight(str(node), key), reverse=True)
    located = router.Located("", "" if last == policies.NOWHERE else str(last))
    chosen = policies.last_holder(agent, last, view, iter(order))
    assert str(chosen) == router.candidates(key, nodes, located, "0").nodes[0]
