"""What a run is, as values: its name, how far it is, what it was begun with. Pure."""

import hashlib
from collections.abc import Sequence

from agentmem.errors import FailedPrecondition, NotFound
from agentmem.keys import AgentKey
from agentmem.v1 import workflow_pb2, workflow_run_pb2

State = workflow_pb2.WorkflowState


def workflow_id(namespace: str, request_id: str) -> str:
    """The name of the run that a request is for: another namespace's is another run."""
    digest = hashlib.sha256(f"{namespace}\0{request_id}".encode()).hexdigest()
    return f"wf-{digest[:20]}"


def new(key: tuple[str, str], name: str, agents: Sequence[workflow_pb2.WorkflowAgent]) -> workflow_pb2.Workflow:
    """A run that begins now."""
    workflow = workflow_pb2.Workflow(
        namespace=key[0], workflow_id=key[1], name=name, state=State.WORKFLOW_STATE_RUNNING, agents=agents
    )
    workflow.create_time.GetCurrentTime()
    return workflow


def check(agents: Sequence[workflow_pb2.WorkflowAgent], models: Sequence[str]) -> None:
    """Refuse memories that cannot be a run's: of unknown models, of wrong names, of two agents in one."""
    owners: dict[AgentKey, str] = {}
    for agent in agents:
        key = AgentKey.from_proto(agent.key)
        if key.model_id not in models:
            raise NotFound("model", key.model_id, f"registered are {', '.join(models) or 'none'}")
        if (other := owners.setdefault(key, agent.name)) != agent.name:
            raise FailedPrecondition(
                f"{other} and {agent.name} would have one memory, {key.agent_id!r} on {key.model_id}; "
                "give one of them another id"
            )


def given(run: workflow_run_pb2.WorkflowRun) -> tuple[str, dict[str, str]]:
    """What a run was begun with."""
    return run.definition_yaml, dict(run.variables)


def summary(workflow: workflow_pb2.Workflow) -> bytes:
    """What a list tells of a run."""
    told = workflow_pb2.Workflow()
    told.CopyFrom(workflow)
    told.ClearField("agents")
    told.error = told.error[:1000]
    return told.SerializeToString()


def as_it_is(workflow: workflow_pb2.Workflow, *, live: bool) -> workflow_pb2.Workflow:
    """A run whose record says this, and which goes on here or not."""
    found = workflow_pb2.Workflow()
    found.CopyFrom(workflow)
    if live:  # it ends when its record says so
        found.state = State.WORKFLOW_STATE_RUNNING
    elif found.state == State.WORKFLOW_STATE_RUNNING:
        found.state = State.WORKFLOW_STATE_INTERRUPTED
    return found


def end(run: workflow_run_pb2.WorkflowRun) -> None:
    """Cancel a run that does not go on, in its record."""
    run.workflow.state, run.workflow.error = State.WORKFLOW_STATE_CANCELLED, ""
    finished = workflow_pb2.RunWorkflowResponse(finished=workflow_pb2.WorkflowFinished(workflow=run.workflow))
    finished.sequence = len(run.events) + 1
    finished.time.GetCurrentTime()
    run.events.add(key="finished", event=finished)


def word(state: "workflow_pb2.WorkflowState.ValueType") -> str:
    """A state's name in metrics."""
    return State.Name(state).removeprefix("WORKFLOW_STATE_").lower()
