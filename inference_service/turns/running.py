"""A turn that runs: what its caller reads from, and cancels."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable

from agentmem.errors import AgentmemError, Cancelled, ResourceExhausted
from agentmem.hints import Hint
from agentmem.v1 import inference_pb2
from inference_service.answers import delta
from inference_service.domain import TokenEvent, TurnRequest
from inference_service.engine.generation import Generated
from inference_service.text.answering import NOTHING_SAID, Said
from inference_service.text.tokenizer import Tokenizer
from inference_service.turns.phases import Phases


class RunningTurn:
    """The caller's end and the runner's end of one turn. Event loop only, but for `token_from_engine`.

    The caller iterates `events` and calls `cancel` when it leaves. Tokens that the caller has not taken yet are joined
    into one delta; more than `buffer` of them end the turn, because nobody is reading.
    """

    def __init__(self, request: TurnRequest, buffer: int, hint: Hint | None = None) -> None:
        self.request = request
        self.hint = hint
        """What had been said of this turn when it arrived."""
        self.arrived = time.monotonic()
        self.phases = Phases()
        self.generated: Generated | None = None
        """What the engine has come to, once it was asked; it writes there until it is through."""
        self.cancelled = threading.Event()
        self.tokens: list[TokenEvent] = []
        self.task: asyncio.Task[None] | None = None
        self.interrupt: Callable[[], object] | None = None
        """What ends the wait that the turn is in, if it is in one: for its agent, for the store, for the engine."""
        self.sampled: Callable[[float], object] | None = None
        """Who is told of each token, and when it was sampled."""
        self._loop = asyncio.get_running_loop()
        self._buffer = buffer
        self._taken = 0
        self._tokenizer: Tokenizer | None = None
        self._ready: list[inference_pb2.GenerateResponse] = []
        self._rest = NOTHING_SAID
        self.ended = False
        self.committing = False
        """The ledger is being written: the turn can no longer be cancelled."""
        self.error: Exception | None = None
        """What ended the turn, or will."""
        self._changed = asyncio.Event()

    async def events(self) -> AsyncIterator[inference_pb2.GenerateResponse]:
        """Started, deltas, finished. Raises what ended the turn."""
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
        """End the turn within one step; nothing is committed. Without effect once the commit has begun.

        `error` is what the caller gets; by default, that it was cancelled.
        """
        if self.ended or self.committing or self.cancelled.is_set():
            return
        self.error = self.error or error
        self.cancelled.set()
        if self.interrupt is not None:
            self.interrupt()

    def check(self) -> None:
        """Raise what cancelled the turn, if something did."""
        if self.cancelled.is_set():
            raise self.error or Cancelled("the request was cancelled")

    def token_from_engine(self, event: TokenEvent) -> None:
        """Take a token. Any thread."""
        self._loop.call_soon_threadsafe(self._take_token, event)

    def started(self, started: inference_pb2.Started, tokenizer: Tokenizer | None) -> None:
        """Tell what memory gave."""
        self._tokenizer = tokenizer
        self.say(inference_pb2.GenerateResponse(started=started))

    def say(self, event: inference_pb2.GenerateResponse) -> None:
        """Hand an event to the caller, after all tokens that were taken."""
        self._ready.append(event)
        self._changed.set()

    def rest(self, said: Said) -> None:
        """What became certain when generation ended."""
        self._rest = said
        self._changed.set()

    def end(self, error: Exception | None = None) -> None:
        """No more events. The first error counts, and so does the first call."""
        if self.ended:
            return
        self.error = self.error or error
        self.ended = True
        self._changed.set()

    def _take_token(self, event: TokenEvent) -> None:
        self.tokens.append(event)
        if self.sampled is not None:
            self.sampled(event.at)
        if len(self.tokens) - self._taken > self._buffer and not self.cancelled.is_set():
            self.cancel(_stalled(self._buffer))
        self._changed.set()

    def _delta(self) -> inference_pb2.GenerateResponse:
        """The tokens that wait, as many as fit the order in a delta: reasoning, text, calls."""
        assert self._tokenizer is not None
        waiting, spoke = self.tokens[self._taken :], False
        new: list[TokenEvent] = []
        for event in waiting:
            if (event.reasoning and spoke) or (new and new[-1].calls):
                break
            new.append(event)
            spoke = spoke or bool(event.text)
        self._taken += len(new)
        rest = NOTHING_SAID
        in_order = not (self._rest.reasoning and spoke) and not (new and new[-1].calls)
        if len(new) == len(waiting) and in_order:
            rest, self._rest = self._rest, rest
        return inference_pb2.GenerateResponse(delta=delta(new, self._tokenizer, rest))


def _stalled(buffer: int) -> AgentmemError:
    return ResourceExhausted(f"the reader of this stream is more than {buffer} tokens behind; read faster")
