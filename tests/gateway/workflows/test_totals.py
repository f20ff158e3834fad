"""What memory saved in a run, by its events."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentmem.v1 import workflow_pb2
from gateway.workflows.event_log import Totals
from tests.gateway.workflows.cli.events import ABSENT, EVICTED, EXTEND, RUN, numbered, spoke, step, usage


def test_sums() -> None:
    assert Totals(RUN).sums == workflow_pb2.WorkflowTotals(
        turns=4,
        notes=1,
        listenings=1,
        replayed=1,
        resent_tokens=200,  # who only listened would not have been asked by a server without memory
        prefilled_tokens=159,
        reused_tokens=51,
        recomputed_tokens=20,  # a ledger had 36 tokens, of which 16 were there; what was never seen does not count
    )


def test_each_step_has_the_sums_up_to_it() -> None:
    totals = Totals()
    for event in RUN:
        totals.add(event)
        kind = event.WhichOneof("event")
        if kind in ("agent_spoke", "agent_listened"):
            assert getattr(event, kind).totals == totals.sums


COUNTS = st.tuples(*(st.integers(0, 5000) for _ in range(4)))


@given(st.lists(st.tuples(COUNTS, st.sampled_from([0, ABSENT, EVICTED])), max_size=20))
def test_tokens_come_from_somewhere(turns: list[tuple[tuple[int, ...], int]]) -> None:
    events = []
    for (new, hot, warm, said), missed in turns:
        events.append(spoke("a", "x", "p", step(EXTEND, usage(new + hot + warm, hot, warm, said), missed)))
    sums = Totals(numbered(*events)).sums
    assert sums.reused_tokens + sums.prefilled_tokens == sums.resent_tokens
    assert 0 <= sums.recomputed_tokens <= sums.prefilled_tokens
