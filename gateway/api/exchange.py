"""Requests as turns of the contract, and the answer that their events make. Pure."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from agentmem import jsontext
from agentmem.errors import AgentmemError, InvalidArgument
from agentmem.limits import SAMPLING
from agentmem.v1 import inference_pb2, types_pb2
from gateway.api.reports import memory_report
from gateway.api.validation import Json


class SseEvent(NamedTuple):
    """JSON, or text as it is; `name` is its event field."""

    data: Json | str
    name: str = ""


class Incoming(NamedTuple):
    """`turn` is the Idempotency-Key, `unique` a hexadecimal number of this request alone, `created` seconds of the Unix
    epoch.
    """

    namespace: str
    turn: str
    unique: str
    created: int
    agent_id: str = ""


class Heard:
    def __init__(self) -> None:
        self.started = inference_pb2.Started()
        self.finished = inference_pb2.Finished()
        self.ended = False
        self.reasoning: list[str] = []
        self.texts: list[str] = []
        self.logprobs: list[inference_pb2.TokenLogprob] = []
        self.calls: list[inference_pb2.ToolCall] = []
        self.begun: list[str] = []
        """Ids of the calls that a stream has begun."""
        self.characters = 0
        """Characters of the tokens that a stream of log-probabilities has told."""

    def add(self, event: inference_pb2.GenerateResponse) -> None:
        self.note(event)
        self.keep(event)

    def note(self, event: inference_pb2.GenerateResponse) -> None:
        """Take of an event what a stream needs again: the turn's beginning and end, and its calls."""
        match event.WhichOneof("event"):
            case "started":
                self.started = event.started
            case "delta":
                self.calls += event.delta.tool_calls
            case "finished":
                self.finished, self.ended = event.finished, True

    def keep(self, event: inference_pb2.GenerateResponse) -> None:
        """Take the rest, which grows with the answer: log-probabilities by some 2 KB a token."""
        if event.HasField("delta"):
            self.reasoning.append(event.delta.reasoning)
            self.texts.append(event.delta.text)
            self.logprobs += event.delta.logprobs


class Answer(ABC):
    """The events of each choice come in order; those of different choices may mix."""

    def __init__(self, head: Json, choices: int = 1) -> None:
        self.head = head
        self.agent_id = ""
        """The first choice's agent, set before the first event; empty where nothing is kept."""
        self.left_out: Sequence[str] = ()
        """Parts of the request that do not reach the model: tools of another server, images."""
        self.heard = [Heard() for _ in range(choices)]

    def add(self, choice: int, event: inference_pb2.GenerateResponse) -> None:
        """Take an event of a choice, for `body`. Of calls only whole ones count."""
        self.heard[choice].keep(event)
        if event.HasField("delta"):
            event.delta.ClearField("tool_call_parts")
        for _ in self.events(choice, event):
            pass

    @abstractmethod
    def events(self, choice: int, event: inference_pb2.GenerateResponse) -> Iterable[SseEvent]:
        """Take an event of a choice; yields what a stream says of it."""

    def alive(self) -> Iterable[SseEvent]:
        """Called in a long silence, since most clients count no comments. Nothing: a comment."""
        return ()

    def closing(self) -> Iterable[SseEvent]:
        """Return what a stream says at its end."""
        return ()

    @abstractmethod
    def failed(self, error: AgentmemError) -> Iterable[SseEvent]:
        """Return what a stream says of its failure, and ends with."""

    @abstractmethod
    def body(self) -> Json:
        """Return the whole answer."""

    def report(self) -> Json:
        """Return the memory report of the first choice."""
        report = memory_report(self.heard[0].started, self.heard[0].finished, self.agent_id)
        return {**report, "left_out": [*self.left_out]}


@dataclass(frozen=True)
class Exchange:
    """A turn for each choice, without an agent. The first is the agent's, others keep nothing.

    `previous` is the request_id of a turn that this one appends to. `label` narrows the search for the agent.
    """

    turns: tuple[inference_pb2.GenerateRequest, ...]
    answer: Answer
    streamed: bool
    label: str = ""
    previous: str = ""
    left_out: Sequence[str] = ()
    """Parts of the user's messages that are no text, as "image" or "2 files"."""
    others: Sequence[str] = ()
    """Parts without effect: fields by their names, tools, items and blocks by their types."""


def turn_of(incoming: Incoming, request: Any, **asked: Any) -> inference_pb2.GenerateRequest:
    """`request` has sampling and a model. The turn has no agent; tools in its messages may be called."""
    sampled = SAMPLING.keys() & type(request).model_fields.keys()
    made = inference_pb2.GenerateRequest(
        key=types_pb2.AgentKey(namespace=incoming.namespace, model_id=request.model or ""),
        sampling=types_pb2.Sampling(**{name: getattr(request, name) for name in sampled}),
        **{"request_id": incoming.turn, **asked},
    )
    made.tool_calls = bool(made.messages.tools_json or made.append.messages.tools_json)
    return made


def held_calls(
    tools: Sequence[Any], *, required: bool, names: Sequence[str], single: bool
) -> inference_pb2.ToolChoice | None:
    """Return what the grammar holds calls to; None where they are the model's own. `tools` are those that it gets.

    Raises InvalidArgument for a choice among other tools.
    """
    if (required or names) and not tools:
        raise InvalidArgument("tool_choice", "needs tools")
    if not set(names) <= {tool.name for tool in tools}:
        raise InvalidArgument("tool_choice", "names a tool that is not among the tools")
    strict = [tool.name for tool in tools if tool.strict]
    if not tools or not (required or names or single or strict):
        return None
    return inference_pb2.ToolChoice(required=required, names=names, single=single, strict=strict)


def tool_of(name: str, description: str | None, parameters: Json | None) -> Json:
    described = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": {key: value for key, value in described.items() if value is not None}}


def function_call(identifier: str, name: str, arguments: str) -> Json:
    """`arguments` is JSON text."""
    return {"id": identifier, "type": "function", "function": {"name": name, "arguments": arguments}}


def calls_in_order(
    delta: inference_pb2.Delta,
) -> Iterator[inference_pb2.ToolCallPart | inference_pb2.ToolCall]:
    """Yield parts of whole calls, the calls, and parts of the next."""
    whole = {call.id for call in delta.tool_calls}
    yield from (part for part in delta.tool_call_parts if part.id in whole)
    yield from delta.tool_calls
    yield from (part for part in delta.tool_call_parts if part.id not in whole)


def call_arguments(given: str | Json | None) -> str:
    """Return JSON text: "" and null are {}; other text stays as it is."""
    if isinstance(given, dict):
        return jsontext.write("arguments", given)
    return given if given and given.strip() else "{}"


def joined(content: str | list[Any] | None) -> str:
    """Return a content of text as one text."""
    return content if isinstance(content, str) else "".join(part.text for part in content or ())


def to_json_text(field: str, value: Any) -> str | None:
    """Return None for what is empty. Raises InvalidArgument."""
    return jsontext.write(field, value) if value else None
