from datetime import UTC, datetime

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from agentmem.v1 import types_pb2, workflow_pb2
from agentmem.words import printable
from gateway.cli.text import age, as_dict, counted, iso_time


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s ago"), (61, "1 min ago"), (7300, "2 h ago"), (200000, "2 d ago")]
)
def test_age(seconds: int, text: str) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert age(Timestamp(seconds=int(now.timestamp()) - seconds), now) == text


@pytest.mark.parametrize(("number", "text"), [(0, "0 turns"), (1, "1 turn"), (1200, "1,200 turns")])
def test_counts(number: int, text: str) -> None:
    assert counted(number, "turn") == text


def test_no_time() -> None:
    assert age(Timestamp(), datetime.now(UTC)) == "never"
    assert iso_time(Timestamp()) is None
    assert iso_time(Timestamp(seconds=1)) == "1970-01-01T00:00:01.000+00:00"


@given(st.text())
def test_nothing_steers_the_terminal(text: str) -> None:
    assert printable(text).isprintable()


def test_printable_keeps_what_it_is_told() -> None:
    assert printable("é🌍\x1b[31m\n\t", keep="\n") == "é🌍\\x1b[31m\n\\t"


def test_fields_have_the_contracts_names_and_plain_values() -> None:
    workflow = workflow_pb2.Workflow(
        workflow_id="wf-1",
        state=workflow_pb2.WORKFLOW_STATE_RUNNING,
        turns=3,
        agents=[workflow_pb2.WorkflowAgent(name="a", key=types_pb2.AgentKey(model_id="demo"))],
    )
    workflow.create_time.FromMilliseconds(1_700_000_000_500)
    assert as_dict(workflow) == {
        "workflow_id": "wf-1",
        "namespace": "",
        "name": "",
        "state": "running",
        "phase": "",
        "turns": 3,
        "create_time": "2023-11-14T22:13:20.500+00:00",
        "update_time": None,
        "error": "",
        "agents": [
            {"name": "a", "key": {"namespace": "", "agent_id": "", "model_id": "demo"}, "persists": False},
        ],
    }


def test_values_that_say_nothing() -> None:
    told = as_dict(workflow_pb2.AgentSpoke())
    assert (told["usage"], told["reason"], told["text"], told["replayed"]) == (None, None, "", False)
    assert as_dict(types_pb2.Sampling(seed=0))["seed"] == 0
    assert as_dict(types_pb2.Sampling())["seed"] is None


def test_json_in_a_field_is_what_it_says() -> None:
    outcome = workflow_pb2.PhaseOutcome(phase="p", outcome_json='{"a": [1, null]}', rounds=2)
    assert as_dict(outcome) == {"phase": "p", "outcome": {"a": [1, None]}, "rounds": 2}
    assert as_dict(workflow_pb2.PhaseOutcome(outcome_json="{"))["outcome"] == "{"
