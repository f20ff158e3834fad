from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentmem.v1 import workflow_pb2
from gateway.cli.workflows.state import GAP, Run, Totals, totals_line
from tests.gateway.cli.workflows.events import (
    ABSENT,
    EVICTED,
    EXTEND,
    RUN,
    Event,
    delta,
    numbered,
    speaking,
    spoke,
    step,
    usage,
    workflow,
)


def told(count: int = len(RUN)) -> Run:
    """The run after its first `count` events."""
    run = Run()
    for event in RUN[:count]:
        run.add(event)
    return run


def test_who_does_what() -> None:
    def doing(count: int) -> dict[str, str]:
        return {name: member.doing for name, member in told(count).members.items()}

    assert doing(1) == {"warden": "idle", "marco": "idle", "danny": "idle"}
    assert doing(5) == {"warden": "idle", "marco": "speaking", "danny": "speaking"}
    assert doing(10) == {"warden": "idle", "marco": "speaking", "danny": "idle"}
    # Who only learns of a whisper has that to take in.
    assert doing(12) == {"warden": "listening", "marco": "idle", "danny": "listening"}
    assert doing(14) == {"warden": "listening", "marco": "listening", "danny": "idle"}
    assert set(doing(len(RUN)).values()) == {"idle"}


def test_speakers_are_not_mixed_up() -> None:
    run = told(9)
    assert {name: member.saying for name, member in run.members.items()} == {
        "warden": "",
        "marco": "The boat is green.",
        "danny": "I saw nothing.",
    }
    run.interrupt()
    assert run.members["marco"].saying == GAP
    for event in RUN[9:11]:
        run.add(event)
    assert run.members["marco"].last is not None
    assert (run.members["marco"].saying, run.members["marco"].last.text) == ("", "The boat is green.")


def test_who_is_joined_in_mid_turn_speaks() -> None:
    run = told(1)
    for event in RUN[6:8]:
        run.add(event)
    assert {name: (member.doing, member.saying) for name, member in run.members.items()} == {
        "warden": ("idle", ""),
        "marco": ("speaking", f"{GAP} is green."),
        "danny": ("speaking", f"{GAP}I saw"),
    }
    run.add(RUN[4])  # It begins again after an outage.
    assert run.members["danny"].saying == ""


def test_a_failure_is_told_and_not_in_the_log() -> None:
    run = told(10)
    failed = workflow_pb2.WorkflowFinished(workflow=workflow(workflow_pb2.WORKFLOW_STATE_FAILED))
    assert run.add(Event(sequence=run.sequence, finished=failed))
    assert run.finished
    assert not run.add(Event(sequence=run.sequence, finished=failed))


def test_ledgers_and_turns() -> None:
    members = told().members
    assert {name: (member.turns, member.ledger_tokens) for name, member in members.items()} == {
        "warden": (1, 52),
        "marco": (2, 63),
        "danny": (1, 48),
    }
    assert members["warden"].persists
    assert members["warden"].key.agent_id == "wf-1/warden"


@given(st.lists(st.integers(0, len(RUN)), max_size=8))
def test_what_is_told_twice_changes_nothing(cuts: list[int]) -> None:
    """Streams that are cut off anywhere, and told again from the beginning, are one run."""
    run = Run()
    shown = []
    for cut in [*cuts, len(RUN)]:
        growing = ("agent_speaking", "agent_delta")
        shown += [event for event in RUN[:cut] if run.add(event) and event.WhichOneof("event") not in growing]
        run.interrupt()
    assert [event.sequence for event in shown] == list(range(1, len(shown) + 1))
    assert vars(Totals(run)) == vars(Totals(told()))
    assert totals_line(run) == totals_line(told())


def test_sums() -> None:
    sums = Totals(told())
    assert (sums.turns, sums.replayed) == (4, 1)
    # Who only listened would not have been asked by a server without memory.
    assert (sums.resent, sums.reused, sums.prefilled, sums.saved) == (200, 51, 159, 41)
    # Marco's ledger had 36 tokens, of which 16 were there; what was never seen is not "again".
    assert sums.again == 20
    assert totals_line(told()) == (
        "succeeded: 4 turns in 13.0 s · prefilled 159 tokens, where sending each ledger again takes 200: 20% saved · "
        "20 computed another time · 1 replayed"
    )


COUNTS = st.tuples(*(st.integers(0, 5000) for _ in range(4)))


@given(st.lists(st.tuples(COUNTS, st.sampled_from([0, ABSENT, EVICTED])), max_size=20))
def test_tokens_come_from_somewhere(turns: list[tuple[tuple[int, ...], int]]) -> None:
    events = []
    for (new, hot, warm, said), missed in turns:
        counts = usage(new + hot + warm, hot, warm, said)
        events += [speaking("a", "p"), delta("a", "x"), spoke("a", "x", "p", step(EXTEND, counts, missed))]
    run = Run()
    for event in numbered(*events):
        run.add(event)
    sums = Totals(run)
    assert sums.reused + sums.prefilled == sums.resent
    assert sums.saved == sums.reused
    assert 0 <= sums.again <= sums.prefilled
    assert 0 <= sums.share <= 1
    assert all(one.reused + one.prefilled == one.event.usage.prompt_tokens for one in run.steps)
