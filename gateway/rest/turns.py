"""Generate over REST: a body as an exchange, and the events of its turn as an answer."""

from collections.abc import Iterator
from functools import cache
from typing import Any

from pydantic import BaseModel, Field, create_model

from agentmem.errors import AgentmemError
from agentmem.v1 import inference_pb2
from gateway.exchange import Exchange, Json, SseEvent
from gateway.rest.endpoints import Endpoint
from gateway.rest.errors import error_body
from gateway.rest.schema import ContractModel, body_model, message_model
from gateway.rest.transcoding import fill, to_json

STREAM = "stream"


@cache
def model_of_body(endpoint: Endpoint) -> type[ContractModel]:
    """The body of an endpoint. That of Generate has `stream` besides the contract's fields."""
    further: dict[str, Any] = {}
    if endpoint.rpc.name == "Generate":
        further[STREAM] = (bool, Field(False, description="Answer with server-sent events."))
    name = endpoint.rpc.input_type.name
    return body_model(endpoint.rpc.input_type, name, without=endpoint.bound, needed=endpoint.needed, **further)


@cache
def model_of_answer() -> type[BaseModel]:
    """The whole answer of Generate: what all its events say."""
    delta = message_model(inference_pb2.Delta.DESCRIPTOR)
    said: dict[str, Any] = {name: (one.annotation, ...) for name, one in delta.model_fields.items()}
    for event in (inference_pb2.Started, inference_pb2.Finished):
        said[event.DESCRIPTOR.name.lower()] = (message_model(event.DESCRIPTOR), ...)
    return create_model("Turn", __base__=ContractModel, **said)


def exchange_of(turn: inference_pb2.GenerateRequest, body: ContractModel) -> Exchange:
    """The exchange of one turn, whose key and request_id are set, and that is told what `body` has."""
    fill(turn, body, without=frozenset({STREAM}))
    return Exchange((turn,), RestAnswer(), bool(getattr(body, STREAM)), label=turn.label)


class RestAnswer:
    """An Answer: the contract's events as they are, or all of them as one object."""

    def __init__(self) -> None:
        self.agent_id = ""
        self._said = inference_pb2.Delta()
        self._started = inference_pb2.Started()
        self._finished = inference_pb2.Finished()
        self._reasoning: list[str] = []
        self._texts: list[str] = []

    def add(self, choice: int, event: inference_pb2.GenerateResponse) -> None:  # noqa: ARG002 - there is one choice
        """As in Answer."""
        match event.WhichOneof("event"):
            case "started":
                self._started = event.started
            case "delta":
                self._reasoning.append(event.delta.reasoning)
                self._texts.append(event.delta.text)
                self._said.MergeFrom(event.delta)  # repeated fields grow; text is replaced, and joined in the end
            case "finished":
                self._finished = event.finished

    def events(self, choice: int, event: inference_pb2.GenerateResponse) -> Iterator[SseEvent]:  # noqa: ARG002
        """The event itself, by its name."""
        name = event.WhichOneof("event")
        if name is not None:
            yield SseEvent(to_json(getattr(event, name)), name)

    def closing(self) -> Iterator[SseEvent]:
        """Nothing: `finished` was the last."""
        return iter(())

    def failed(self, error: AgentmemError) -> Iterator[SseEvent]:
        """The error, and nothing after it."""
        yield SseEvent(error_body(error), "error")

    def body(self) -> Json:
        """All that was said, with what `started` and `finished` told."""
        self._said.reasoning = "".join(self._reasoning)
        self._said.text = "".join(self._texts)
        return {**to_json(self._said), "started": to_json(self._started), "finished": to_json(self._finished)}
