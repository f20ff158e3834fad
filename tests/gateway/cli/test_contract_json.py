from agentmem.v1 import types_pb2, workflow_pb2
from gateway.cli.contract_json import as_dict


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
