"""What a run is, as values."""

import pytest

from agentmem.errors import FailedPrecondition, NotFound
from gateway.workflows import states
from gateway.workflows.run import agent_keys
from tests.gateway.workflows.files import definition

ALIKE = {"a": {"persist": True, "id": "x"}, "b": {"persist": True, "id": "x", "model": "demo"}}


def test_two_agents_have_not_one_memory_whichever_model_is_the_default() -> None:
    workflow = definition({"agents": ["a", "b"]}, agents=ALIKE)
    states.check(agent_keys(workflow, "n", "wf-1", "other"), ["other", "demo"])
    with pytest.raises(FailedPrecondition):
        states.check(agent_keys(workflow, "n", "wf-1", "demo"), ["other", "demo"])


def test_an_unknown_model_is_told_with_those_there_are() -> None:
    with pytest.raises(NotFound, match="registered are other"):
        states.check(agent_keys(definition({"agents": ["a"]}), "n", "wf-1", "demo"), ["other"])
