"""The events of a turn as one response, or the stream that makes it.

Reasoning and text are one item each until another follows, and each call is one.
"""

import hashlib
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from agentmem import jsontext
from agentmem.errors import AgentmemError, FailedPrecondition, InvalidArgument, ResourceExhausted
from agentmem.v1 import inference_pb2
from agentmem.words import cached_tokens, cut_short
from gateway.api.exchange import Answer, SseEvent, calls_in_order
from gateway.api.openai_answers import logprobs_of
from gateway.api.openai_tools import CUSTOM_INPUT, Called
from gateway.api.validation import Json


class _Kind(NamedTuple):
    """A kind of item with one part of text. `prefix` begins its id."""

    prefix: str
    fields: Json
    part: str


_MESSAGE: Final = _Kind("msg", {"type": "message", "role": "assistant"}, "output_text")
_REASONING: Final = _Kind("rs", {"type": "reasoning", "summary": []}, "reasoning_text")


class _Part:
    """An item that the model is saying."""

    def __init__(self, kind: _Kind, identifier: str, index: int) -> None:
        self.kind = kind
        self.index = index
        self.head = {"id": identifier, **kind.fields, "status": "in_progress"}
        self.texts: list[str] = []
        self.logprobs: list[Json] = []

    def with_logprobs(self, logprobs: list[Json]) -> Json:
        return {"logprobs": logprobs} if self.kind is _MESSAGE else {}

    def event(self, name: str, **fields: object) -> Json:
        return _event(name, self.index, item_id=self.head["id"], content_index=0, **fields)

    def part(self) -> Json:
        said = {"annotations": [], "logprobs": [*self.logprobs]} if self.kind is _MESSAGE else {}
        return {"type": self.kind.part, "text": "".join(self.texts), **said}

    def item(self, status: str) -> Json:
        return {**self.head, "status": status, "content": [self.part()]}


def _event(name: str, index: int, /, **fields: object) -> Json:
    return {"type": f"response.{name}", "output_index": index, **fields}


class Output:
    """The items of one response. Ids are made of its `number`: msg_NUMBER_N and rs_NUMBER_N of the Nth text and
    thought, fc_NUMBER_HASH and ctc_NUMBER_HASH of the call of that id. `called` are tools by the model's names.
    """

    def __init__(self, number: str, called: Mapping[str, Called] = MappingProxyType({}), *, logprobs: bool) -> None:
        self._number = number
        self._called = called
        self._logprobs = logprobs
        self._counts: dict[str, int] = {}
        self._done: list[Json] = []
        self._open: _Part | None = None
        self._calling: Json | None = None
        """An item with the arguments so far of the call that the model is making."""
        self._void = 0
        """Items that were begun, and are none of the response."""
        self._waiting: list[Json] = []
        """Log-probabilities without a text yet: of half a character, or of a call that goes on."""

    @property
    def items(self) -> list[Json]:
        """Text that is not finished is incomplete."""
        return [*self._done, *([self._open.item("incomplete")] if self._open else [])]

    def add(self, delta: inference_pb2.Delta) -> Iterator[Json]:
        """Yields the events, without their numbers."""
        if self._logprobs:
            self._waiting += logprobs_of(delta.logprobs)
        if delta.reasoning:
            yield from self._say(_REASONING, delta.reasoning)
        if delta.text:
            yield from self._say(_MESSAGE, delta.text)
        for call in calls_in_order(delta):
            yield from self._call(call) if isinstance(call, inference_pb2.ToolCall) else self._take_part(call)

    def end(self, *, cut_short: bool) -> Iterator[Json]:
        """An answer without any item gets an empty text."""
        if self._open is None and not self._done:
            yield from self._begin(_MESSAGE)
        if self._open is not None and self._open.kind is _MESSAGE and self._waiting:
            yield from self._say(_MESSAGE, "")
        yield from self._close("incomplete" if cut_short else "completed")

    def _say(self, kind: _Kind, text: str) -> Iterator[Json]:
        if self._calling is not None or (self._open is not None and self._open.kind is not kind):
            yield from self._close("completed")
        if self._open is None:
            yield from self._begin(kind)
        part = self._open
        assert part is not None
        logprobs: list[Json] = []
        if kind is _MESSAGE:
            logprobs, self._waiting = self._waiting, []
        part.texts.append(text)
        part.logprobs += logprobs
        yield part.event(f"{kind.part}.delta", delta=text, **part.with_logprobs(logprobs))

    def _begin(self, kind: _Kind) -> Iterator[Json]:
        part = self._open = _Part(kind, self._new_id(kind.prefix), self._index)
        yield _event("output_item.added", part.index, item={**part.head, "content": []})
        yield part.event("content_part.added", part=part.part())

    def _close(self, status: str) -> Iterator[Json]:
        if self._calling is not None:  # No call. Clients make calls of items that are done.
            self._calling, self._void = None, self._void + 1
        if self._open is None:
            return
        part, self._open = self._open, None
        item = part.item(status)
        self._done.append(item)
        yield part.event(f"{part.kind.part}.done", text="".join(part.texts), **part.with_logprobs(part.logprobs))
        yield part.event("content_part.done", part=item["content"][0])
        yield _event("output_item.done", part.index, item=item)

    def _take_part(self, part: inference_pb2.ToolCallPart) -> Iterator[Json]:
        if part.name:
            yield from self._begin_call(part.id, part.name)
        item = self._calling
        # No call; or one of a custom tool, whose text is told when it is whole.
        if item is None or item["call_id"] != part.id or "arguments" not in item:
            return
        item["arguments"] += part.arguments_json
        yield _event("function_call_arguments.delta", self._index, item_id=item["id"], delta=part.arguments_json)

    def _begin_call(self, call_id: str, name: str) -> Iterator[Json]:
        self._waiting = []  # Log-probabilities of no text.
        yield from self._close("completed")
        tool = self._called.get(name) or Called(name)
        self._calling = call_item(call_item_id(self._number, call_id, custom=tool.custom), call_id, tool, "")
        yield _event("output_item.added", self._index, item={**self._calling, "status": "in_progress"})

    def _call(self, call: inference_pb2.ToolCall) -> Iterator[Json]:
        begun = self._calling is not None and self._calling["call_id"] == call.id
        if not begun:
            yield from self._begin_call(call.id, call.name)
        self._waiting = []
        item, index = self._calling, self._index
        assert item is not None
        custom = "input" in item
        text = custom_input(call.arguments_json) if custom else call.arguments_json
        field, said = ("input", "custom_tool_call_input") if custom else ("arguments", "function_call_arguments")
        if custom or not begun:
            yield _event(f"{said}.delta", index, item_id=item["id"], delta=text)
        item = {**item, field: text}
        self._done.append(item)
        self._calling = None
        yield _event(f"{said}.done", index, item_id=item["id"], name=item["name"], **{field: text})
        yield _event("output_item.done", index, item=item)

    @property
    def _index(self) -> int:
        return len(self._done) + self._void

    def _new_id(self, kind: str) -> str:
        number = self._counts.get(kind, 0)
        self._counts[kind] = number + 1
        return f"{kind}_{self._number}_{number}"


def call_item_id(number: str, call_id: str, *, custom: bool = False) -> str:
    """Return an id made of the call's: the number of what turned out to be no call is not kept."""
    digest = hashlib.blake2b(call_id.encode(), digest_size=4).hexdigest()
    return f"{'ctc' if custom else 'fc'}_{number}_{digest}"


def call_item(identifier: str, call_id: str, tool: Called, text: str) -> Json:
    """`text` is the arguments as JSON, or the input of a custom tool."""
    kind, field = ("custom_tool_call", "input") if tool.custom else ("function_call", "arguments")
    namespace = {"namespace": tool.namespace} if tool.namespace else {}
    head = {"id": identifier, "type": kind, "call_id": call_id, "name": tool.name, **namespace}
    return {**head, field: text, "status": "completed"}


def custom_input(arguments: str) -> str:
    """Return all that the model said where it named no input."""
    given = jsontext.object_or_text(arguments)
    text = given.get(CUSTOM_INPUT) if isinstance(given, dict) else None
    return text if isinstance(text, str) else arguments


class ResponseAnswer(Answer):
    """`head` is what the response says of its request."""

    def __init__(
        self, head: Json, number: str, called: Mapping[str, Called] = MappingProxyType({}), *, logprobs: bool
    ) -> None:
        super().__init__(head)
        self._output = Output(number, called, logprobs=logprobs)
        self._events = 0

    def body(self) -> Json:
        incomplete = cut_short(self.heard[0].finished.reason)
        return {
            **self._response("incomplete" if incomplete else "completed"),
            "incomplete_details": {"reason": "max_output_tokens"} if incomplete else None,
            "output": self._output.items,
            "usage": self._usage(),
            "agentmem": self.report(),
        }

    def events(self, choice: int, event: inference_pb2.GenerateResponse) -> Iterator[SseEvent]:
        self.heard[choice].note(event)
        if self._events == 0:
            yield from self._begin()
        events: Iterator[Json] = iter(())
        match event.WhichOneof("event"):
            case "delta":
                events = self._output.add(event.delta)
            case "finished":
                events = self._output.end(cut_short=cut_short(event.finished.reason))
        for one in events:
            yield self._numbered(one)

    def alive(self) -> Iterator[SseEvent]:
        if self._events == 0:
            yield from self._begin()
        elif not self.heard[0].ended:
            yield self._lifecycle("in_progress", self._response("in_progress"))

    def _begin(self) -> Iterator[SseEvent]:
        for name in ("created", "in_progress"):
            yield self._lifecycle(name, self._response("in_progress"))

    def closing(self) -> Iterator[SseEvent]:
        body = self.body()
        yield self._lifecycle(body["status"], body)

    def failed(self, error: AgentmemError) -> Iterator[SseEvent]:
        if self._events == 0:
            yield from self._begin()
        failure = {"code": _code(error), "message": error.message}
        yield self._lifecycle("failed", {**self._response("failed"), "error": failure, "output": self._output.items})

    def _response(self, status: str) -> Json:
        nothing_yet: Json = {"error": None, "incomplete_details": None, "output": [], "usage": None}
        # What is not kept cannot be followed by its id, whatever was asked for.
        stored = self.head["store"] and bool(self.agent_id)
        return {**self.head, "store": stored, "status": status, **nothing_yet}

    def _lifecycle(self, name: str, response: Json) -> SseEvent:
        return self._numbered({"type": f"response.{name}", "response": response})

    def _numbered(self, event: Json) -> SseEvent:
        numbered = SseEvent({**event, "sequence_number": self._events}, event["type"])
        self._events += 1
        return numbered

    def _usage(self) -> Json:
        finished = self.heard[0].finished
        usage, cached = finished.usage, cached_tokens(finished.usage)
        return {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": cached,
                "cache_write_tokens": usage.prompt_tokens - cached if finished.durable else 0,
            },
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }


def _code(error: AgentmemError) -> str:
    if isinstance(error, ResourceExhausted):
        return "rate_limit_exceeded"
    return "invalid_prompt" if isinstance(error, InvalidArgument | FailedPrecondition) else "server_error"
