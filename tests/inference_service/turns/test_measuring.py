"""What a turn that went well writes to the log about the agent's memory, and what is counted without one."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from agentmem.errors import ResourceExhausted, Unavailable
from agentmem.keys import AgentKey
from agentmem.v1 import types_pb2
from inference_service.domain import AppendInput, TextInput, TurnInput, TurnRequest
from inference_service.engine.generation import Generated
from inference_service.memory.ledger import NO_VERSION, Ledger, Version
from inference_service.memory.match import Limits
from inference_service.metrics import WorkerMetrics
from inference_service.storage.client import Opened
from inference_service.text.rendering import Renderer
from inference_service.turns.measuring import TokenMeasures, TurnMeasures
from inference_service.turns.planned import Prepared, Reuse
from inference_service.turns.preparing import Preparer
from inference_service.turns.running import RunningTurn
from tests.inference_service.real_tokenizers import byte_level_with_bos
from tests.inference_service.turns.world import NoSnapshots

TOKENIZER = byte_level_with_bos()
MODEL = cast(
    Any,
    SimpleNamespace(
        tokenizer=TOKENIZER,
        renderer=Renderer(TOKENIZER, None),
        fingerprint="f",
        vocab_size=TOKENIZER.vocab_size,
        context_length=4096,
        geometry=SimpleNamespace(sliding=None),
        reasoning=None,
    ),
)
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
    preparer = Preparer(cast(Any, None), cast(Any, NoSnapshots()), Limits(), 16)
    first = TurnRequest(key=AgentKey("ns", "a", "tiny"), input=TextInput(TEXT), digest=b"")
    ids = (await preparer.plan(first, MODEL, Opened(NO_VERSION, None), None)).plan.sequence
    ledger = Ledger().followed_by(ids, TOKENIZER.pieces(ids), tokenizer_hash)
    request = replace(first, input=said)
    planned = await preparer.plan(request, MODEL, Opened(Version("u", 1), ledger), None)
    prepared = Prepared(**vars(planned), reuse=Reuse(list))
    generated = Generated(reason=types_pb2.FINISH_REASON_STOP)
    TurnMeasures(WorkerMetrics(CollectorRegistry())).completed(RunningTurn(request, 100), prepared, generated)
    assert caplog.messages == [*logged, "turn finished"]
    dropped = [record.fields["dropped_tokens"] for record in caplog.records if record.message == REPLACED]  # type: ignore[attr-defined]
    assert all(0 < tokens < len(ledger) for tokens in dropped)


def test_gaps_are_those_between_tokens() -> None:
    """Also of tokens that arrive together: the engine says when it sampled them."""
    registry = CollectorRegistry()
    tokens = TokenMeasures(WorkerMetrics(registry, ["tiny"]), ("tiny",))
    for at in (10.0, 10.5, 10.5, 13.5):
        tokens.sampled(at)
    value = registry.get_sample_value
    assert value("agentmem_generation_tokens_total", {"model_id": "tiny"}) == 4
    assert value("agentmem_inter_token_latency_seconds_count", {"model_id": "tiny"}) == 3
    assert value("agentmem_inter_token_latency_seconds_sum", {"model_id": "tiny"}) == 3.5
    assert value("agentmem_inter_token_latency_seconds_bucket", {"model_id": "tiny", "le": "0.001"}) == 1


def test_a_refused_turn_is_counted_by_its_code_and_only_of_models_that_there_are() -> None:
    registry = CollectorRegistry()
    measures = TurnMeasures(WorkerMetrics(registry, ["tiny"]))
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
