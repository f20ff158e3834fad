"""The lines of turns that come to nothing: their ids and status, and no words that the caller may have put there."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from agentmem import errors
from agentmem.keys import AgentKey
from agentmem.v1 import types_pb2
from inference_service.domain import TextInput, TurnRequest
from inference_service.turns import telling
from inference_service.turns.running import RunningTurn

IDS = {"agent": "a", "model": "tiny", "namespace": "ns"}


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level("INFO", "inference_service")
    return caplog


def fields(line: logging.LogRecord) -> dict[str, Any]:
    told: dict[str, Any] = line.__dict__["fields"]
    return told


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (errors.InvalidArgument("stop", "canary"), {"status": "INVALID_ARGUMENT"}),
        (errors.FailedPrecondition("canary of a template"), {"status": "FAILED_PRECONDITION"}),
        (errors.ResourceExhausted("64 run"), {"status": "RESOURCE_EXHAUSTED", "reason": "64 run"}),
    ],
)
def test_a_refused_turn(error: errors.AgentmemError, told: dict[str, str], logged: pytest.LogCaptureFixture) -> None:
    with pytest.raises(type(error)), telling.refused(AgentKey("ns", "a", "tiny").to_proto()):
        raise error
    (line,) = logged.records
    assert (line.message, line.levelname, fields(line)) == ("turn refused", "INFO", {**IDS, **told})


def test_ids_that_are_refused_are_cut(logged: pytest.LogCaptureFixture) -> None:
    key = types_pb2.AgentKey(agent_id="a" * 100_000)
    with pytest.raises(errors.InvalidArgument), telling.refused(key):
        raise errors.InvalidArgument("key.agent_id", "is too long")
    assert len(fields(logged.records[0])["agent"]) < 300


@pytest.mark.parametrize(
    ("error", "message", "status", "level"),
    [
        (errors.Cancelled("left"), "turn cancelled", "CANCELLED", "INFO"),
        (errors.Aborted("the agent is at version 3, not 7"), "turn failed", "ABORTED", "INFO"),
        (errors.Internal("incident"), "turn failed", "INTERNAL", "WARNING"),
        (ValueError("canary"), "turn failed", "INTERNAL", "WARNING"),
    ],
)
async def test_a_turn_that_failed(
    error: Exception, message: str, status: str, level: str, logged: pytest.LogCaptureFixture
) -> None:
    request = TurnRequest(key=AgentKey("ns", "a", "tiny"), input=TextInput("canary"), digest=b"", request_id="its-name")
    turn = RunningTurn(request, 10)
    turn.end(error)
    telling.failed(turn)
    (line,) = logged.records
    told = fields(line)
    assert (line.message, line.levelname, told["status"]) == (message, level, status)
    assert told.items() >= {**IDS, "turn": "its-name"}.items()
    assert told["total_ms"] >= 0
    assert "canary" not in str(told)
