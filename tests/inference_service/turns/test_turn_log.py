"""Logs and metrics of turns have no words that the caller may have put there, and only true losses."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from agentmem import errors
from agentmem.errors import ResourceExhausted, Unavailable
from agentmem.kv.ledger import NO_VERSION, Ledger, Version
from agentmem.v1 import types_pb2
from agentmem.validation import AgentKey
from inference_service.domain import AppendInput, TextInput, TurnInput, TurnRequest
from inference_service.engine.generation import Generated
from inference_service.memory.match import MatchLimits
from inference_service.metrics import WorkerMetrics
from inference_service.storage.client import Opened
from inference_service.threads import WorkerThreads
from inference_service.turns import turn_log
from inference_service.turns.planning import TurnPlanner
from inference_service.turns.restored import Restored
from inference_service.turns.turn import Turn
from inference_service.turns.turn_log import TurnLog, token_counter
from tests.inference_service.published_models import text_model
from tests.inference_service.real_tokenizers import byte_level_with_bos
from tests.inference_service.turns.world import NoSnapshots

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
    with pytest.raises(type(error)), turn_log.refused(AgentKey("ns", "a", "tiny").to_proto()):
        raise error
    (line,) = logged.records
    assert (line.message, line.levelname, fields(line)) == ("turn refused", "INFO", {**IDS, **told})


def test_ids_that_are_refused_are_cut(logged: pytest.LogCaptureFixture) -> None:
    key = types_pb2.AgentKey(agent_id="a" * 100_000)
    with pytest.raises(errors.InvalidArgument), turn_log.refused(key):
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
    turn_log.failed(Turn(request), error)
    (line,) = logged.records
    told = fields(line)
    assert (line.message, line.levelname, told["status"]) == (message, level, status)
    assert told.items() >= {**IDS, "turn": "its-name"}.items()
    assert told["total_ms"] >= 0
    assert "canary" not in str(told)


TOKENIZER = byte_level_with_bos()
MODEL = text_model(TOKENIZER)
TEXT = "The colour of the boat is green. The key is in the cellar."
RETOKENIZED = "the tokenizer has changed; what the agent remembered was tokenized again"
REPLACED = "the prompt replaces a part of what the agent remembered"


@pytest.mark.parametrize(
    ("tokenizer_hash", "said", "logged"),
    [
        (TOKENIZER.hash, AppendInput(TextInput(" And now?")), []),
        (TOKENIZER.hash, TextInput("The colour of the boat is red."), [REPLACED]),
        ("an older tokenizer", AppendInput(TextInput(" And now?")), [RETOKENIZED]),
        ("an older tokenizer", TextInput(TEXT), [RETOKENIZED]),
        ("an older tokenizer", TextInput("The colour of the boat is red."), [RETOKENIZED, REPLACED]),
    ],
)
async def test_only_what_is_lost_is_said_to_be(
    tokenizer_hash: str, said: TurnInput, logged: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "inference_service")
    planner = TurnPlanner(cast(Any, NoSnapshots()), WorkerThreads(), MatchLimits(), 16)
    first = TurnRequest(key=AgentKey("ns", "a", "tiny"), input=TextInput(TEXT), digest=b"")
    await planner.plan(new := Turn(first), MODEL, Opened(NO_VERSION, None))
    ids = new.plan.sequence.tolist()
    ledger = Ledger().followed_by(ids, TOKENIZER.pieces(ids), tokenizer_hash)
    turn = Turn(replace(first, input=said))
    await planner.plan(turn, MODEL, Opened(Version("u", 1), ledger))
    turn.restored, turn.generated = Restored(MODEL), Generated(reason=types_pb2.FINISH_REASON_STOP)
    TurnLog(WorkerMetrics(CollectorRegistry()), 1).completed(turn)
    assert caplog.messages == [*logged, "turn finished"]
    dropped = [record.fields["dropped_tokens"] for record in caplog.records if record.message == REPLACED]  # type: ignore[attr-defined]
    assert all(0 < tokens < len(ledger) for tokens in dropped)


def test_gaps_are_those_between_tokens() -> None:
    """Also of tokens that arrive together: the engine says when it sampled them."""
    registry = CollectorRegistry()
    sampled = token_counter(WorkerMetrics(registry, ["tiny"]), ("tiny",))
    for at in (10.0, 10.5, 10.5, 13.5):
        sampled(at)
    value = registry.get_sample_value
    assert value("agentmem_generation_tokens_total", {"model_id": "tiny"}) == 4
    assert value("agentmem_inter_token_latency_seconds_count", {"model_id": "tiny"}) == 3
    assert value("agentmem_inter_token_latency_seconds_sum", {"model_id": "tiny"}) == 3.5
    assert value("agentmem_inter_token_latency_seconds_bucket", {"model_id": "tiny", "le": "0.001"}) == 1


def test_a_refused_turn_is_counted_by_its_code_and_only_of_models_that_there_are() -> None:
    registry = CollectorRegistry()
    measures = TurnLog(WorkerMetrics(registry, ["tiny"]), 1)
    for model in ("tiny", "made-up"):
        request = TurnRequest(key=AgentKey("ns", "a", model), input=TextInput(TEXT), digest=b"")
        for error in (Unavailable("later"), ResourceExhausted("full"), ResourceExhausted("full")):
            measures.refused(request, error)
    value = registry.get_sample_value
    counted = [
        value("agentmem_requests_finished_total", {"model_id": model, "reason": reason})
        for model in ("tiny", "made-up")
        for reason in ("unavailable", "resource_exhausted", "internal")
    ]
    assert counted == [1, 2, 0, None, None, None]
