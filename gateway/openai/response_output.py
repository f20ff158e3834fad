"""The items that a response puts out, as they come: text is one item until a call follows, each call is one.

Whatever changes is told as an event, without its sequence number; what all events say together is what `items` hold.
"""

from collections.abc import Iterable, Iterator

from agentmem.v1 import inference_pb2
from gateway.exchange import Json
from gateway.openai.told import logprobs_of


class Output:
    """The items of one response. `number` makes their ids; `logprobs` says whether they were asked for."""

    def __init__(self, number: str, *, logprobs: bool) -> None:
        self._number = number
        self._logprobs = logprobs
        self._done: list[Json] = []
        self._open: _Text | None = None
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
        if delta.text:
            yield from self._say(delta.text)
        for call in delta.tool_calls:
            self._waiting = []  # they tell of no text
            yield from self._close("completed")
            yield from self._call(call)

    def end(self, *, cut_short: bool) -> Iterator[Json]:
        """The model says no more. An answer without any item gets an empty text."""
        if self._open is None and not self._done:
            yield from self._begin()
        if self._open is not None and self._waiting:
            yield self._open.delta("", self._logprobs_for_text())
        yield from self._close("incomplete" if cut_short else "completed")

    def _say(self, text: str) -> Iterator[Json]:
        if self._open is None:
            yield from self._begin()
        assert self._open is not None
        yield self._open.delta(text, self._logprobs_for_text())

    def _begin(self) -> Iterator[Json]:
        self._open = _Text(f"msg_{self._number}_{len(self._done)}", len(self._done))
        yield _event("output_item.added", self._open.index, item={**self._open.head, "content": []})
        yield self._open.event("content_part.added", part=_part("", []))

    def _close(self, status: str) -> Iterator[Json]:
        if self._open is None:
            return
        text, self._open = self._open, None
        whole, logprobs = "".join(text.texts), text.logprobs
        item = text.item(status)
        self._done.append(item)
        yield text.event("output_text.done", text=whole, logprobs=logprobs)
        yield text.event("content_part.done", part=_part(whole, logprobs))
        yield _event("output_item.done", text.index, item=item)

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


class _Text:
    """A message that the model is saying: one part of text."""

    def __init__(self, identifier: str, index: int) -> None:
        self.index = index
        self.head = {"id": identifier, "type": "message", "role": "assistant", "status": "in_progress"}
        self.texts: list[str] = []
        self.logprobs: list[Json] = []

    def delta(self, text: str, logprobs: list[Json]) -> Json:
        """Say some more; the event that tells of it."""
        self.texts.append(text)
        self.logprobs += logprobs
        return self.event("output_text.delta", delta=text, logprobs=logprobs)

    def event(self, name: str, **fields: object) -> Json:
        """An event of the part."""
        return _event(name, self.index, item_id=self.head["id"], content_index=0, **fields)

    def item(self, status: str) -> Json:
        """The whole item so far."""
        return {**self.head, "status": status, "content": [_part("".join(self.texts), list(self.logprobs))]}


def _part(text: str, logprobs: Iterable[Json]) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


def _event(event: str, index: int, /, **fields: object) -> Json:
    return {"type": f"response.{event}", "output_index": index, **fields}
