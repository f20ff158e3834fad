"""A run's name, record and memories, before it begins."""

import hashlib
from collections.abc import Sequence

from agentmem import errors
from agentmem.v1 import workflow_pb2
from agentmem.validation import AgentKey
from gateway.workflows.definition.schema import Definition
from gateway.workflows.records import RunKey, State
from gateway.workflows.run import agent_keys


def new_workflow(definition: Definition, key: RunKey, models: Sequence[str]) -> workflow_pb2.Workflow:
    """`models` are the registered ones, the default first. Raises AgentmemError."""
    agents = agent_keys(definition, *key, models[0] if models else "")
    check_memories(agents, models)
    workflow = workflow_pb2.Workflow(
        namespace=key[0],
        workflow_id=key[1],
        name=definition.workflow,
        state=State.WORKFLOW_STATE_RUNNING,
        agents=agents,
    )
    workflow.create_time.GetCurrentTime()
    return workflow


def workflow_id_of(namespace: str, request_id: str) -> str:
    """Another namespace's is another run."""
    digest = hashlib.sha256(f"{namespace}\0{request_id}".encode()).hexdigest()
    return f"wf-{digest[:20]}"


def check_memories(agents: Sequence[workflow_pb2.WorkflowAgent], models: Sequence[str]) -> None:
    """Raise AgentmemError for unknown models, wrong names, and two agents with one memory."""
    owners: dict[AgentKey, str] = {}
    for agent in agents:
        key = AgentKey.from_proto(agent.key)
        if key.model_id not in models:
            raise errors.NotFound("model", key.model_id, f"registered are {', '.join(models) or 'none'}")
        if (other := owners.setdefault(key, agent.name)) != agent.name:
            raise errors.FailedPrecondition(
                f"{other} and {agent.name} would have one memory, {key.agent_id!r} on {key.model_id}; "
                "give one of them another id"
            )
