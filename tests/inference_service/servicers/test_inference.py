import asyncio
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agentmem.errors import FailedPrecondition, InvalidArgument, NotFound
from agentmem.kv.ledger import Ledger, Version
from agentmem.v1 import inference_pb2, types_pb2
from inference_service.domain import TokenEvent, TurnRequest
from inference_service.memory.match import MatchLimits
from inference_service.servicers import inference as inference_module
from inference_service.servicers.inference import InferenceServicer
from inference_service.storage.client import Opened
from inference_service.threads import WorkerThreads
from inference_service.turns.planning import TurnPlanner
from inference_service.turns.stream import TurnStream
from tests.inference_service.published_models import text_model
from tests.inference_service.real_tokenizers import byte_level_with_bos, renderer

KEY = types_pb2.AgentKey(namespace="ns", agent_id="a", model_id="tiny")
MODEL = text_model(byte_level_with_bos(), model_id="tiny", renderer=renderer(), context_length=4096)


class Runner:
    """Starts turns that say what a test lets them say."""

    def __init__(self) -> None:
        self.turns: list[TurnStream] = []
        self.requests: list[TurnRequest] = []
        self.aborted: list[tuple[str, str]] = []
        self.error: Exception | None = None

    def start(self, request: TurnRequest) -> TurnStream:
        if self.error is not None:
            raise self.error
        turn = TurnStream(100)
        turn.started(inference_pb2.Started(context_remaining=5), byte_level_with_bos())
        self.turns.append(turn)
        self.requests.append(request)
        return turn

    def abort(self, namespace: str, request_id: str) -> bool:
        self.aborted.append((namespace, request_id))
        return request_id == "running"


class Models:
    """One that is loaded, and one that is not."""

    def loaded(self, model_id: str) -> Any:
        return MODEL if model_id == "tiny" else None

    async def info(self, model_id: str) -> Any:
        if model_id != "on disk":
            raise NotFound("model", model_id)
        return MODEL


class Store:
    ledger: Ledger | None = None

    async def open(self, key: Any, peek: bool = False) -> Opened:
        assert peek, "to count is no use of the agent"
        return Opened(Version("u", 1), self.ledger)


class World:
    def __init__(self) -> None:
        self.runner, self.store = Runner(), Store()
        threads = WorkerThreads()
        planner = TurnPlanner(cast(Any, None), threads, MatchLimits(), 16)
        runner, models, store = (cast(Any, each) for each in (self.runner, Models(), self.store))
        self.servicer = InferenceServicer(runner, models, planner, store, threads)

    async def count(self, **fields: Any) -> int:
        request = inference_pb2.CountTokensRequest(**{"key": KEY, **fields})
        response = await self.servicer.CountTokens(request, None)
        assert response.context_length == 4096
        return response.tokens


def finish(turn: TurnStream, error: Exception | None = None) -> None:
    if error is None:
        turn.send(inference_pb2.GenerateResponse(finished=inference_pb2.Finished(durable=True)))
    turn.end(error)


async def test_generate_streams_what_the_turn_says() -> None:
    world = World()
    stream = world.servicer.Generate(inference_pb2.GenerateRequest(key=KEY, prompt="x"), None)
    assert (await anext(stream)).started.context_remaining == 5
    turn = world.runner.turns[0]
    turn.take(TokenEvent(7, None, (), "text"))
    assert (await anext(stream)).delta.text == "text"
    finish(turn)
    assert (await anext(stream)).finished.durable
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_a_caller_that_leaves_cancels_its_turn() -> None:
    world = World()
    stream = world.servicer.Generate(inference_pb2.GenerateRequest(key=KEY, prompt="x"), None)
    await anext(stream)
    assert not world.runner.turns[0].cancelled.is_set()
    await cast(Any, stream).aclose()
    assert world.runner.turns[0].cancelled.is_set()


async def test_prefill_answers_once() -> None:
    world = World()
    call = asyncio.create_task(
        cast(Any, world.servicer.Prefill(inference_pb2.PrefillRequest(key=KEY, prompt="x"), None))
    )
    while not world.runner.turns:
        await asyncio.sleep(0.001)
    turn = world.runner.turns[0]
    assert not world.runner.requests[0].generates
    finish(turn)
    response = await call
    assert response.started.context_remaining == 5
    assert response.finished.durable


async def test_count_tokens_of_every_input() -> None:
    world = World()
    tokenizer = byte_level_with_bos()
    text = "the colour of the boat"
    assert await world.count(prompt=text) == 1 + len(tokenizer.encode(text, parse_special=False))
    assert await world.count(token_ids=types_pb2.TokenIds(ids=[1, 2, 3])) == 3
    chat = types_pb2.Messages(messages=[types_pb2.ChatMessage(role="user", content="x")])
    whole = renderer().messages(
        cast(Any, SimpleNamespace(messages=({"role": "user", "content": "x"},), tools=(), template_arguments={})),
        generation_prompt=True,
        parse_special=True,
    )
    assert await world.count(messages=chat) == len(renderer().encode(whole))
    no_agent = types_pb2.AgentKey(namespace="ns", model_id="tiny")
    assert await world.count(key=no_agent, messages=chat) == len(renderer().encode(whole))


async def test_count_tokens_of_an_append_counts_what_is_added() -> None:
    world = World()
    tokenizer = byte_level_with_bos()
    added = tokenizer.encode(" of the boat", parse_special=False)
    append = types_pb2.Append(text=" of the boat")
    assert await world.count(append=append) == 1 + len(added), "a new agent begins with the BOS"
    ids = tokenizer.encode("the colour", parse_special=False)
    world.store.ledger = Ledger().followed_by(ids, tokenizer.pieces(ids), tokenizer.hash)
    assert await world.count(append=append) == len(added)
    world.store.ledger = Ledger().followed_by(ids, tokenizer.pieces(ids), "another tokenizer")
    with pytest.raises(FailedPrecondition, match="tokenizer"):
        await world.count(append=append)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "input"),
        ({"prompt": "x", "key": types_pb2.AgentKey(agent_id="a", model_id="tiny")}, "key.namespace"),
        (
            {"append": types_pb2.Append(text="x"), "key": types_pb2.AgentKey(namespace="n", model_id="tiny")},
            "key.agent_id",
        ),
        ({"token_ids": types_pb2.TokenIds(ids=[0, 10**6])}, "token_ids.ids[1]"),
    ],
)
async def test_count_tokens_refuses(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await World().count(**fields)
    assert caught.value.field == field


async def test_abort() -> None:
    world = World()
    request = inference_pb2.AbortRequest(namespace="ns", request_id="running")
    assert (await world.servicer.Abort(request, None)).aborted
    request.request_id = "done"
    assert not (await world.servicer.Abort(request, None)).aborted
    assert world.runner.aborted == [("ns", "running"), ("ns", "done")]


@pytest.mark.parametrize(
    ("namespace", "request_id", "field"),
    [("", "r", "namespace"), ("ns", "", "request_id"), ("ns", "r" * 129, "request_id"), ("n" * 257, "r", "namespace")],
)
async def test_abort_refuses(namespace: str, request_id: str, field: str) -> None:
    world = World()
    with pytest.raises(InvalidArgument) as caught:
        await world.servicer.Abort(inference_pb2.AbortRequest(namespace=namespace, request_id=request_id), None)
    assert caught.value.field == field
    assert world.runner.aborted == []


async def test_requests_are_parsed_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """All but their keys: a request of 13 MB would hold up every stream for 40 ms."""
    world, names = World(), []
    real = inference_module.generate_request

    def parsed(request: inference_pb2.GenerateRequest) -> TurnRequest:
        names.append(threading.current_thread().name)
        return real(request)

    monkeypatch.setattr(inference_module, "generate_request", parsed)
    stream = world.servicer.Generate(inference_pb2.GenerateRequest(key=KEY, prompt="x"), None)
    await anext(stream)
    await stream.aclose()
    assert names[0].startswith("requests")
