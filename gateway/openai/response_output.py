"""The items that a response puts out, as they come: reasoning and text are one item each until another follows, and
each call is one.

Whatever changes is told as an event, without its sequence number; what all events say together is what `items` hold.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from agentmem.v1 import inference_pb2
from gateway.exchange import Json
from gateway.openai.told import logprobs_of


class Output:
    """The items of one response. `number` makes their ids; `logprobs` says whether they were asked for."""

    def __init__(self, number: str, *, logprobs: bool) -> None:
        self._number = number
        self._logprobs = logprobs
        self._done: list[Json] = []
        self._open: _Part | None = None
        self._waiting: list[Json] = []
        """Log-probabilities of tokens that no text has come of yet: of half a character, or of a call that goes on."""

    @property
    def items(self) -> list[Json]:
        """All items; text that is not finished is incomplete."""
        return [*self._done, *([self._open.item("incomplete")] if self._open else [])]

    def add(self, delta: inference_pb2.Delta) -> Iterator[Json]:
        """Take what the model said next: its text comes before its calls."""
        if self._logprobs:
            self._waiting += logprobs_of(delta.logprobs)
        if delta.reasoning:
            yield from self._say(_REASONING, delta.reasoning)
        if delta.text:
            yield from self._say(_MESSAGE, delta.text)
        for call in delta.tool_calls:
            self._waiting = []  # they tell of no text
            yield from self._close("completed")
            yield from self._call(call)

    def end(self, *, cut_short: bool) -> Iterator[Json]:
        """The model says no more. An answer without any item gets an empty text."""
        if self._open is None and not self._done:
            yield from self._begin(_MESSAGE)
        if self._open is not None and self._open.kind is _MESSAGE and self._waiting:
            yield self._open.delta("", self._logprobs_for_text())
        yield from self._close("incomplete" if cut_short else "completed")

    def _say(self, kind: "_Kind", text: str) -> Iterator[Json]:
        if self._open is not None and self._open.kind is not kind:
            yield from self._close("completed")
        if self._open is None:
            yield from self._begin(kind)
        assert self._open is not None
        yield self._open.delta(text, self._logprobs_for_text() if kind is _MESSAGE else [])

    def _begin(self, kind: "_Kind") -> Iterator[Json]:
        self._open = _Part(kind, f"{kind.prefix}_{self._number}_{len(self._done)}", len(self._done))
        yield _event("output_item.added", self._open.index, item={**self._open.head, "content": []})
        yield self._open.event("content_part.added", part=kind.part("", []))

    def _close(self, status: str) -> Iterator[Json]:
        if self._open is None:
            return
        part, self._open = self._open, None
        item = part.item(status)
        self._done.append(item)
        yield part.event(f"{part.kind.event}.done", **part.whole())
        yield part.event("content_part.done", part=item["content"][0])
        yield _event("output_item.done", part.index, item=item)

    def _call(self, call: inference_pb2.ToolCall) -> Iterator[Json]:
        index, arguments = len(self._done), call.arguments_json
        head = {"id": f"fc_{self._number}_{index}", "type": "function_call", "call_id": call.id, "name": call.name}
        item = {**head, "arguments": arguments, "status": "completed"}
        self._done.append(item)
        yield _event("output_item.added", index, item={**head, "arguments": "", "status": "in_progress"})
        yield _event("function_call_arguments.delta", index, item_id=head["id"], delta=arguments)
        yield _event("function_call_arguments.done", index, item_id=head["id"], name=call.name, arguments=arguments)
        yield _event("output_item.done", index, item=item)

    def _logprobs_for_text(self) -> list[Json]:
        taken, self._waiting = self._waiting, []
        return taken


class _Kind(NamedTuple):
    """A kind of item that has one part of text: what its id begins with, its fields, its part's type and its events."""

    prefix: str
    fields: Json
    type: str
    event: str

    def part(self, text: str, logprobs: Iterable[Json]) -> Json:
        """Its part."""
        said = {"annotations": [], "logprobs": list(logprobs)} if self.type == "output_text" else {}
        return {"type": self.type, "text": text, **said}


_MESSAGE = _Kind("msg", {"type": "message", "role": "assistant"}, "output_text", "output_text")
_REASONING = _Kind("rs", {"type": "reasoning", "summary": []}, "reasoning_text", "reasoning_text")


class _Part:
    """An item that the model is saying: one part of text."""

    def __init__(self, kind: _Kind, identifier: str, index: int) -> None:
        self.kind = kind
        self.index = index
        self.head = {"id": identifier, **kind.fields, "status": "in_progress"}
        self.texts: list[str] = []
        self.logprobs: list[Json] = []

    def delta(self, text: str, logprobs: list[Json]) -> Json:
        """Say some more; the event that tells of it."""
        self.texts.append(text)
        self.logprobs += logprobs
        extra = {"logprobs": logprobs} if self.kind is _MESSAGE else {}
        return self.event(f"{self.kind.event}.delta", delta=text, **extra)

    def whole(self) -> Json:
        """What the event says that ends it."""
        extra = {"logprobs": self.logprobs} if self.kind is _MESSAGE else {}
        return {"text": "".join(self.texts), **extra}

    def event(self, name: str, **fields: object) -> Json:
        """An event of the part."""
        return _event(name, self.index, item_id=self.head["id"], content_index=0, **fields)

    def item(self, status: str) -> Json:
        """The whole item so far."""
        part = self.kind.part("".join(self.texts), self.logprobs)
        return {**self.head, "status": status, "content": [part]}


def _event(event: str, index: int, /, **fields: object) -> Json:
    return {"type": f"response.{event}", "output_index": index, **fields}
