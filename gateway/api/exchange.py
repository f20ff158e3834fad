"""What a dialect makes of a request: turns of the contract, and the answer that takes shape from their events.

A dialect is pure translation. It knows neither sockets nor whose memory is meant: `gateway.agent_finder` finds that
out, and `gateway.http.turns` runs the turns.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from agentmem import jsontext
from agentmem.errors import AgentmemError, InvalidArgument
from agentmem.v1 import inference_pb2
from gateway.api.reports import memory_report
from gateway.api.validation import Json


class SseEvent(NamedTuple):
    """One server-sent event: an object that goes as JSON, or text as it is; `name` is its event field, if any."""

    data: Json | str
    name: str = ""


class Incoming(NamedTuple):
    """What a dialect may need of a request besides its body.

    `turn` is what Idempotency-Key names the turn, empty without one; `unique` is a hexadecimal number that no other
    request has, and `created` the present second of the Unix epoch. `agent_id` is what X-Agent-ID names, empty
    without it.
    """

    namespace: str
    turn: str
    unique: str
    created: int
    agent_id: str = ""


class Heard:
    """What one turn has said so far, as far as it was taken."""

    def __init__(self) -> None:
        self.started = inference_pb2.Started()
        self.finished = inference_pb2.Finished()
        self.reasoning: list[str] = []
        self.texts: list[str] = []
        self.logprobs: list[inference_pb2.TokenLogprob] = []
        self.calls: list[inference_pb2.ToolCall] = []

    def add(self, event: inference_pb2.GenerateResponse) -> None:
        """Take all of the next event."""
        self.note(event)
        self.keep(event)

    def note(self, event: inference_pb2.GenerateResponse) -> None:
        """Take of the next event what its stream needs again: how the turn began and ended, and its calls."""
        match event.WhichOneof("event"):
            case "started":
                self.started = event.started
            case "delta":
                self.calls += event.delta.tool_calls
            case "finished":
                self.finished = event.finished

    def keep(self, event: inference_pb2.GenerateResponse) -> None:
        """Take the rest of it, which grows with the answer: log-probabilities by some 2 KB a token."""
        if event.HasField("delta"):
            self.reasoning.append(event.delta.reasoning)
            self.texts.append(event.delta.text)
            self.logprobs += event.delta.logprobs


class Answer(ABC):
    """One request's answer. The events of each choice come in order; those of different choices may mix."""

    def __init__(self, choices: int = 1) -> None:
        self.agent_id = ""
        """The agent that the first choice belongs to, set before the first event; empty where nothing is kept."""
        self.heard = [Heard() for _ in range(choices)]

    def add(self, choice: int, event: inference_pb2.GenerateResponse) -> None:
        """Take the next event of a choice, for `body`."""
        self.heard[choice].keep(event)
        for _ in self.events(choice, event):
            pass

    @abstractmethod
    def events(self, choice: int, event: inference_pb2.GenerateResponse) -> Iterable[SseEvent]:
        """Take the next event of a choice; yields what a stream says of it. What was said is not kept."""

    def closing(self) -> Iterable[SseEvent]:
        """Return what a stream says when every choice is finished."""
        return ()

    @abstractmethod
    def failed(self, error: AgentmemError) -> Iterable[SseEvent]:
        """Return what a stream that has begun says of its failure. It ends with that."""

    @abstractmethod
    def body(self) -> Json:
        """Return the whole answer, when every choice is finished."""

    def report(self) -> Json:
        """Return the memory report of the first choice, whose turn is the agent's."""
        return memory_report(self.heard[0].started, self.heard[0].finished, self.agent_id)


@dataclass(frozen=True)
class Exchange:
    """One request, translated. `turns` has one for each choice, without an agent.

    The first turn is the agent's, the others keep nothing. `previous` is the request_id of a turn that this one
    follows; its input is an append then. `label` narrows the search for the agent.
    """

    turns: tuple[inference_pb2.GenerateRequest, ...]
    answer: Answer
    streamed: bool
    label: str = ""
    previous: str = ""


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

_WITHOUT_THINKING: Final = {"enable_thinking": False}
"""How most templates take that the model must not think."""


def template_arguments(effort: Effort | None, given: Mapping[str, Any] | None = None) -> str | None:
    """Return the chat template's arguments as JSON: the reasoning effort and what the caller gives; None for nothing.

    Templates that know `reasoning_effort` put it in words, and those that know `enable_thinking` follow "none"; others
    ignore both. Raises InvalidArgument where the two contradict each other.
    """
    arguments: dict[str, Any] = dict(given or {})
    if effort is not None:
        if arguments.get("reasoning_effort", effort) != effort:
            raise InvalidArgument("reasoning_effort", "contradicts chat_template_kwargs; give one of them")
        arguments = {**(_WITHOUT_THINKING if effort == "none" else {}), **arguments, "reasoning_effort": effort}
    return json.dumps(arguments, ensure_ascii=False) if arguments else None


def function_call(identifier: str, name: str, arguments: str) -> Json:
    """Return a call of a tool as chats have it, OpenAI's and the contract's; `arguments` is JSON text."""
    return {"id": identifier, "type": "function", "function": {"name": name, "arguments": arguments}}


def joined(content: str | list[Any] | None) -> str:
    """Return a content of text as one text; its parts are joined without anything between them."""
    return content if isinstance(content, str) else "".join(part.text for part in content or ())


def to_json_text(field: str, value: Any) -> str | None:
    """Return `value` as JSON for a field of the contract; None for what is empty.

    Raises InvalidArgument that names `field` where it is more than the contract takes.
    """
    return jsontext.write(field, value) if value else None
