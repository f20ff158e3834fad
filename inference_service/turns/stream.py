"""A turn's events for its caller, and the caller's cancellation."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Final

from agentmem.errors import Cancelled, ResourceExhausted
from agentmem.v1 import inference_pb2
from inference_service.domain import TokenEvent
from inference_service.text.answering import NO_DELTA, AnswerDelta
from inference_service.text.tokenizer import Tokenizer

BUFFER_TOKENS: Final = 4096
"""A reader that is later is cut off."""


class TurnStream:
    """The caller iterates `events` and calls `cancel` when it leaves. Waiting tokens are joined into one delta; more
    than `buffer` end the turn. Event loop only.
    """

    def __init__(self, buffer: int = BUFFER_TOKENS) -> None:
        self.tokens: list[TokenEvent] = []
        self.cancelled = threading.Event()
        """Read by the engine before each step."""
        self.committing = False
        """The turn cannot be cancelled any more."""
        self.ended = False
        self.error: Exception | None = None
        """Ends the turn, or will."""
        self.interrupt: Callable[[], object] | None = None
        """Ends waits outside the engine."""
        self.on_token: Callable[[float], object] | None = None
        """Called with each token's time."""
        self._buffer = buffer
        self._taken = 0
        self._tokenizer: Tokenizer | None = None
        self._ready: list[inference_pb2.GenerateResponse] = []
        self._rest = NO_DELTA
        self._changed = asyncio.Event()

    async def events(self) -> AsyncIterator[inference_pb2.GenerateResponse]:
        """Yield started, deltas and finished. Raises what ended the turn."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            ready, self._ready = self._ready, []
            started = [event for event in ready if event.HasField("started")]
            for event in started:
                yield event
            while self._taken < len(self.tokens) or any(self._rest):
                yield self._delta()
            for event in ready:
                if not event.HasField("started"):
                    yield event
            if self.ended and not self._ready and self._taken == len(self.tokens):
                if self.error is not None:
                    raise self.error
                return

    def cancel(self, error: Exception | None = None) -> None:
        """End the turn within a step, unless its commit has begun. `error` is by default Cancelled."""
        if self.ended or self.committing or self.cancelled.is_set():
            return
        self.error = self.error or error
        self.cancelled.set()
        if self.interrupt is not None:
            self.interrupt()

    def check(self) -> None:
        """Raise what cancelled the turn, if anything."""
        if self.cancelled.is_set():
            raise self.error or Cancelled("the request was cancelled")

    def take(self, event: TokenEvent) -> None:
        self.tokens.append(event)
        if self.on_token is not None:
            self.on_token(event.at)
        if len(self.tokens) - self._taken > self._buffer and not self.cancelled.is_set():
            behind = f"the reader of this stream is more than {self._buffer} tokens behind; read faster"
            self.cancel(ResourceExhausted(behind))
        self._changed.set()

    def started(self, started: inference_pb2.Started, tokenizer: Tokenizer) -> None:
        """Send the first event; `tokenizer` made the tokens."""
        self._tokenizer = tokenizer
        self.send(inference_pb2.GenerateResponse(started=started))

    def send(self, event: inference_pb2.GenerateResponse) -> None:
        """Send an event after all tokens."""
        self._ready.append(event)
        self._changed.set()

    def rest(self, said: AnswerDelta) -> None:
        self._rest = said
        self._changed.set()

    def end(self, error: Exception | None = None) -> None:
        """End the stream; the first error and call count."""
        if self.ended:
            return
        self.error = self.error or error
        self.ended = True
        self._changed.set()

    def _delta(self) -> inference_pb2.GenerateResponse:
        """Return waiting tokens that fit a delta's order: reasoning, text, calls."""
        assert self._tokenizer is not None
        waiting, spoke = self.tokens[self._taken :], False
        new: list[TokenEvent] = []
        for event in waiting:
            if (event.reasoning and spoke) or (new and new[-1].calls):
                break
            new.append(event)
            spoke = spoke or bool(event.text)
        self._taken += len(new)
        rest = NO_DELTA
        in_order = not (self._rest.reasoning and spoke) and not (new and new[-1].calls)
        if len(new) == len(waiting) and in_order:
            rest, self._rest = self._rest, rest
        return inference_pb2.GenerateResponse(delta=delta(new, self._tokenizer, rest, parts=True))


def delta(
    events: Iterable[TokenEvent], tokenizer: Tokenizer, rest: AnswerDelta = NO_DELTA, *, parts: bool = False
) -> inference_pb2.Delta:
    """Return tokens as one delta, with `rest` at the end, and maybe `parts` of calls."""
    message = inference_pb2.Delta()
    for event in events:
        message.reasoning += event.reasoning
        _add_text(message, event.text)
        for part in event.parts if parts else ():
            if part.name or not message.tool_call_parts:
                message.tool_call_parts.add(id=part.id, name=part.name)
            message.tool_call_parts[-1].arguments_json += part.arguments
        message.tool_calls.extend(event.calls)
        message.token_ids.append(event.token_id)
        if event.logprob is not None:
            message.logprobs.add(
                token_id=event.token_id,
                logprob=event.logprob,
                token_bytes=tokenizer.token_bytes(event.token_id),
                reasoning=event.in_reasoning,
                top=[
                    inference_pb2.TokenAlternative(token_id=i, logprob=p, token_bytes=tokenizer.token_bytes(i))
                    for i, p in event.top
                ],
            )
    message.reasoning += rest.reasoning
    _add_text(message, rest.text)
    message.tool_calls.extend(rest.calls)
    return message


def _add_text(message: inference_pb2.Delta, text: str) -> None:
    """Add text; a call before it turned out to be none."""
    if text and message.tool_call_parts and not message.tool_calls:
        message.ClearField("tool_call_parts")
    message.text += text
