"""POST /v1/chat/completions: one turn of the worker, answered at once or as server-sent events."""

import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass

import grpc
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from agentmem import errors
from agentmem.v1 import inference_pb2, inference_pb2_grpc
from gateway import upstream
from gateway.http.requests import agent_id, json_bytes, request_id, until_disconnect
from gateway.http.rim import as_our_error, tell
from gateway.http.sse import EventStream, ReaderStalled
from gateway.metrics import GatewayMetrics
from gateway.openai.chat_request import to_generate
from gateway.openai.chat_response import ChatAnswer
from gateway.openai.chat_schema import ChatRequest
from gateway.openai.errors import error_body
from gateway.openai.json_body import parse_body

_Events = AsyncIterator[inference_pb2.GenerateResponse]


@dataclass(frozen=True)
class ChatCompletions:
    """The endpoint, as an ASGI application. The limits are as in GatewaySettings."""

    channel: grpc.aio.Channel
    namespace: str
    max_body_bytes: int
    stream_queue: int
    stall_limit: float
    metrics: GatewayMetrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        agent, turn = agent_id(request.headers), request_id(request.headers)
        tell(scope, agent=agent)
        chat = parse_body(await json_bytes(request, self.max_body_bytes), ChatRequest)
        tell(scope, model=chat.model)
        generate = to_generate(chat, agent, turn, self.namespace)
        answer = ChatAnswer(
            f"chatcmpl-{uuid.uuid4().hex}",
            int(time.time()),
            chat.model,
            logprobs=bool(chat.logprobs),
            include_usage=bool(chat.stream_options and chat.stream_options.include_usage),
        )
        began = time.monotonic()
        self.metrics.generation_began("http")
        try:
            work = self._answer(request, generate, answer, send, streamed=bool(chat.stream))
            await until_disconnect(receive, work)
        finally:
            self.metrics.generation_ended("http", time.monotonic() - began)

    async def _answer(
        self,
        request: Request,
        generate: inference_pb2.GenerateRequest,
        answer: ChatAnswer,
        send: Send,
        *,
        streamed: bool,
    ) -> None:
        metadata = [(k, v) for k, v in request.headers.items() if k in upstream.PASSED_METADATA and v.isascii()]
        call = inference_pb2_grpc.InferenceServiceStub(self.channel).Generate(generate, metadata=metadata)
        async with upstream.read_ahead(call, self.stream_queue) as events:
            if streamed:
                await self._stream(events, answer, EventStream(send, self.stall_limit))
                return
            async for event in events:
                answer.add(event)
        _check_finished(answer)
        await JSONResponse(answer.completion())(request.scope, request.receive, send)

    async def _stream(self, events: _Events, answer: ChatAnswer, stream: EventStream) -> None:
        # The status is sent when the first event is there, so a refusal is an error page and not a broken stream.
        first = await anext(events, None)
        if first is None:
            _check_finished(answer)
            return
        await stream.start()
        try:
            await self._events(events, first, answer, stream)
            await stream.end()
        except ReaderStalled:  # the stream has logged it; the response is left without an end
            return

    async def _events(
        self, events: _Events, first: inference_pb2.GenerateResponse, answer: ChatAnswer, stream: EventStream
    ) -> None:
        """All that the stream says. Raises ReaderStalled."""
        try:
            for chunk in answer.chunks(first):
                await stream.send(chunk)
            async for event in events:
                for chunk in answer.chunks(event):
                    await stream.send(chunk)
            _check_finished(answer)
        except ReaderStalled:
            raise
        except Exception as error:  # noqa: BLE001 - the rim: a stream that began can only tell of its failure
            await stream.send(error_body(as_our_error(error)))
        else:
            await stream.send("[DONE]")


def _check_finished(answer: ChatAnswer) -> None:
    if answer.finished is None:
        raise errors.Unavailable("the inference worker ended the turn without finishing it")
