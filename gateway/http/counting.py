"""How many tokens a conversation has, without running it."""

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from agentmem.v1 import inference_pb2, inference_pb2_grpc
from gateway import upstream
from gateway.anthropic.messages_request import to_count
from gateway.anthropic.messages_schema import CountTokensRequest
from gateway.callers import caller
from gateway.http.disconnects import until_disconnect
from gateway.http.requests import json_bytes, worked_out
from gateway.http.rim import tell
from gateway.http.turns import Turns
from gateway.json_body import parse_body


@dataclass(frozen=True)
class CountEndpoint:
    """Anthropic's /v1/messages/count_tokens as an ASGI application."""

    shared: Turns

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        content = await json_bytes(request, self.shared.max_body_bytes)
        asked = await worked_out(len(content), lambda: parse_body(content, CountTokensRequest))
        tell(scope, model=asked.model)
        inference = inference_pb2_grpc.InferenceServiceStub(self.shared.channel)
        call = inference.CountTokens(to_count(asked, caller().namespace))
        counted: inference_pb2.CountTokensResponse = await until_disconnect(receive, upstream.result(call))
        response = JSONResponse({"input_tokens": counted.tokens})
        await response(scope, receive, send)
