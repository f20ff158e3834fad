from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass

from agentmem import errors
from agentmem.channels import connect
from agentmem.v1 import (
    agent_pb2,
    agent_pb2_grpc,
    inference_pb2,
    inference_pb2_grpc,
    model_pb2,
    types_pb2,
)
from tests.agentmem.test_tracing import PARENT
from tests.gateway.running import eventually, running
from tests.gateway.scripted import ScriptedWorker, broken, endless, finished, flood, started

END: Any = cast(Any, grpc.aio).EOF
METHODS: list[Any] = [
    method
    for file, service in ((inference_pb2, "InferenceService"), (agent_pb2, "AgentService"), (model_pb2, "ModelService"))
    for method in file.DESCRIPTOR.services_by_name[service].methods
]


def generate(channel: grpc.aio.Channel, **fields: Any) -> Any:
    key = types_pb2.AgentKey(agent_id="a", model_id="demo")
    return inference_pb2_grpc.InferenceServiceStub(channel).Generate(
        inference_pb2.GenerateRequest(key=key, prompt="hi", request_id="r1"), **fields
    )


async def read_all(call: Any, seen: list[Any] | None = None) -> list[Any]:
    events = [] if seen is None else seen
    async for event in call:
        events.append(event)
    return events


async def drain(call: Any) -> None:
    while await call.read() != END:
        pass


async def call_any(channel: grpc.aio.Channel, method: Any, request: Any) -> list[Any]:
    path = f"/{method.containing_service.full_name}/{method.name}"
    kinds = {
        (False, False): channel.unary_unary,
        (False, True): channel.unary_stream,
        (True, False): channel.stream_unary,
    }
    stub: Any = kinds[method.client_streaming, method.server_streaming](
        path,
        request_serializer=type(request).SerializeToString,
        response_deserializer=GetMessageClass(method.output_type).FromString,
    )
    answer = stub(iter([request])) if method.client_streaming else stub(request)
    return [part async for part in answer] if method.server_streaming else [await answer]


async def test_every_rpc_reaches_the_worker(worker: ScriptedWorker, channel: grpc.aio.Channel) -> None:
    for method in METHODS:
        worker.requests.clear()
        request: Any = GetMessageClass(method.input_type)()
        if method.name == "GetModel":
            request.model_id = "demo"
        if method.name == "ImportAgent":
            request.key.agent_id = "a"
        answers = await call_any(channel, method, request)
        assert answers, method.name
        assert all(isinstance(answer, GetMessageClass(method.output_type)) for answer in answers)
        if "key" in request.DESCRIPTOR.fields_by_name:
            assert worker.requests[0].key.namespace == "default", method.name


async def test_another_namespace_is_refused_before_the_worker(
    worker: ScriptedWorker, channel: grpc.aio.Channel
) -> None:
    for method in METHODS:
        request: Any = GetMessageClass(method.input_type)()
        fields = request.DESCRIPTOR.fields_by_name
        if "key" in fields:
            request.key.namespace, path = "other", "key.namespace"
        elif "namespace" in fields:
            request.namespace, path = "other", "namespace"
        elif "hints" in fields:
            request.hints.add()
            request.hints.add().key.namespace, path = "other", "hints[1].key.namespace"
        else:
            assert method.containing_service.name == "ModelService"  # models belong to no namespace
            continue
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call_any(channel, method, request)
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED, method.name
        assert (caught.value.details() or "").startswith(f"{path}: the namespace 'other' is not yours")
    assert worker.requests == []


async def test_fields_of_a_newer_worker_pass(worker: ScriptedWorker, channel: grpc.aio.Channel) -> None:
    unknown = b"\xb8\x3e\x07"  # field 999

    async def newer(_: Any) -> AsyncIterator[Any]:
        yield inference_pb2.GenerateResponse.FromString(unknown)
        yield finished()

    worker.script = newer
    [first, _] = await read_all(generate(channel))
    assert first.SerializeToString() == unknown


async def test_deadline_and_metadata_pass_and_credentials_do_not(
    worker: ScriptedWorker, channel: grpc.aio.Channel
) -> None:
    metadata = (("traceparent", PARENT), ("x-request-id", "abc"), ("authorization", "Bearer secret"))
    await read_all(generate(channel, timeout=50, metadata=metadata))
    await read_all(generate(channel))
    assert worker.metadata[0]["traceparent"] == PARENT
    assert worker.metadata[0]["x-request-id"] == "abc"
    assert "authorization" not in worker.metadata[0]
    limited, unlimited = worker.time_remaining
    assert limited is not None
    assert 0 < limited < 51  # grpc rounds up
    assert unlimited is None


@pytest.mark.parametrize(
    "error",
    [
        errors.InvalidArgument("sampling.top_p", "must be at most 1"),
        errors.NotFound("model", "nope", "registered are: demo"),
        errors.ResourceExhausted("the queue is full", retry_after=7.0),
        errors.Cancelled("aborted"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_the_workers_errors_pass_with_their_details(
    worker: ScriptedWorker, channel: grpc.aio.Channel, error: errors.AgentmemError
) -> None:
    worker.error = error
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await read_all(generate(channel))
    passed = errors.from_rpc(caught.value)
    assert type(passed) is type(error)
    assert passed.message == error.message
    for name in ("field", "kind", "name", "retry_after"):
        assert getattr(passed, name, None) == getattr(error, name, None)


async def test_a_failure_in_mid_stream_is_a_failure(worker: ScriptedWorker, channel: grpc.aio.Channel) -> None:
    worker.script = broken
    seen: list[Any] = []
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await read_all(generate(channel), seen)
    assert len(seen) == 2
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_turn_that_is_cut_off_by_its_worker_can_be_tried_again(
    worker: ScriptedWorker, channel: grpc.aio.Channel
) -> None:
    async def unfinished(_: Any) -> AsyncIterator[Any]:
        yield started()

    worker.resets, worker.script = True, unfinished  # as a worker does that is ending
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await read_all(generate(channel))
    failure = errors.from_rpc(caught.value)
    assert isinstance(failure, errors.Unavailable)
    assert failure.retry_after == 1.0


async def test_without_a_worker_calls_fail_at_once_and_say_when_to_retry(channel: grpc.aio.Channel) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await agent_pb2_grpc.AgentServiceStub(channel).ListAgents(agent_pb2.ListAgentsRequest())
    failure = errors.from_rpc(caught.value)
    assert isinstance(failure, errors.Unavailable)
    assert failure.retry_after == 1.0
    assert "sock" not in failure.message
    trailing: Any = caught.value.trailing_metadata()
    assert "grpc-status-details-bin" in trailing


async def test_a_caller_that_leaves_cancels_the_worker(worker: ScriptedWorker, channel: grpc.aio.Channel) -> None:
    worker.script = endless
    call = generate(channel)
    await call.read()
    call.cancel()
    await asyncio.wait_for(worker.cancelled.wait(), 20)
    await eventually(lambda: worker.running == 0)


async def test_a_deadline_ends_the_turn_everywhere(worker: ScriptedWorker, channel: grpc.aio.Channel) -> None:
    worker.script = endless
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await read_all(generate(channel, timeout=0.5))
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await eventually(lambda: worker.running == 0)


@pytest.mark.slow
async def test_a_reader_that_stalls_is_aborted(worker: ScriptedWorker, run_dir: Path) -> None:
    worker.script = flood
    async with running(run_dir, stall_limit=0.3) as gateway, connect(gateway.addresses["grpc"]) as channel:
        call = generate(channel)
        await call.read()
        await eventually(lambda: worker.running == 0)  # nobody has read, and the worker is free
        with pytest.raises(grpc.aio.AioRpcError):
            await drain(call)
        assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_an_upload_and_its_refusal_in_mid_stream(worker: ScriptedWorker, channel: grpc.aio.Channel) -> None:
    stub: Any = agent_pb2_grpc.AgentServiceStub(channel)
    request = agent_pb2.ImportAgentRequest
    parts = [request(key=types_pb2.AgentKey(agent_id="a")), request(chunk=b"1"), request(chunk=b"2")]
    await stub.ImportAgent(iter(parts))
    assert [part.chunk for part in worker.requests] == [b"", b"1", b"2"]
    worker.error = errors.AlreadyExists("there is one")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.ImportAgent(iter([*parts, *parts * 50]))
    # The worker's own status is lost where it came while a write was failing.
    assert caught.value.code() in (grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.UNAVAILABLE)
