"""One turn in the engine: request, progress, result."""

import logging
import threading
import time
from collections.abc import Callable, Collection
from collections.abc import Sequence as Items
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import NamedTuple

import mlx.core as mx

from agentmem import tracing
from agentmem.errors import AgentmemError, Cancelled
from agentmem.kv.blockfile import BLOCK_TOKENS
from agentmem.v1 import types_pb2
from inference_service.domain import Sampling, TokenEvent
from inference_service.engine.drafting import Drafter
from inference_service.engine.paged.checkpoints import Checkpoints
from inference_service.engine.paged.sequence import Checkpoint, Sequence
from inference_service.engine.prefill import PrefillChunk
from inference_service.engine.prompt_blocks import PromptBlocks
from inference_service.engine.sampling import ConstrainedSampler, Processor, TokenSampler, penalties
from inference_service.text.answering import NO_DELTA, AnswerDelta, AnswerStream
from inference_service.text.grammar import Grammar
from inference_service.text.reasoning import ReasoningSplit
from inference_service.text.tokenizer import Tokenizer
from inference_service.text.tool_calls import CallSyntax, Tools

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Decoding:
    """`grammar` and `reasoning` are the turn's own, on the engine thread. `transient_stops`: see `Renderer`."""

    max_tokens: int
    reason_at_max: "types_pb2.FinishReason.ValueType" = types_pb2.FINISH_REASON_LENGTH
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    top_logprobs: int | None = None
    grammar: Grammar | None = None
    call_syntax: CallSyntax | None = None
    tools: Tools = ()
    reasoning: ReasoningSplit | None = None
    transient_stops: frozenset[int] = frozenset()


@dataclass
class Generated:
    """`token_ids` are those kept, without a stop string; `rest` is in no token event. `sampled` counts all tokens,
    `reasoning_tokens` those without answer.
    """

    token_ids: list[int] = field(default_factory=list)
    reason: "types_pb2.FinishReason.ValueType" = types_pb2.FINISH_REASON_PREFILLED
    stop_string: str = ""
    rest: AnswerDelta = NO_DELTA
    sampled: int = 0
    reasoning_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    first_token_at: float | None = None


class Chunk(NamedTuple):
    """In monotonic time, stops included. `alone`: no other turn was in the pass."""

    began: float
    ended: float
    position: int
    tokens: int
    alone: bool = True


@dataclass(eq=False, repr=False)
class TurnJob:
    """One turn: prefill of `sequence`, then generation, if there is a `decoding`.

    `begin` makes KV of `reused` tokens, again at a restart; `on_start` gets time, seconds and tokens of that, `emit`
    every token, on the engine thread. Setting `cancelled` ends the turn within one step. `future` has the KV of exactly
    the sequence and generated tokens; `said` has the result a step earlier.

    Prefill captures checkpoints at `checkpoints`, if `resumable` also a long prompt's latest.
    """

    sequence: Items[int]
    begin: Callable[[], Sequence]
    decoding: Decoding | None
    emit: Callable[[TokenEvent], None]
    cancelled: threading.Event
    on_start: Callable[[float, float, int], None] = lambda at, seconds, tokens: None  # noqa: ARG005
    reused: int = 0
    anew: Callable[[], Sequence] | None = None
    checkpoints: Collection[int] = ()
    blocks: PromptBlocks = field(default_factory=PromptBlocks)
    resumable: bool = False
    arrays: bool = True
    store: Checkpoints = field(init=False)
    future: "Future[tuple[Sequence | None, Generated]]" = field(default_factory=Future, init=False)
    said: "Future[Generated]" = field(default_factory=Future, init=False)
    kv: Sequence | None = field(default=None, init=False)
    filled: int = field(default=0, init=False)
    """Tokens whose KV is computed."""
    result: Generated = field(default_factory=Generated, init=False)
    sampler: TokenSampler = field(init=False)
    waited_steps: int = field(default=0, init=False)
    captured: dict[int, Checkpoint] = field(default_factory=dict, init=False)
    latest: Checkpoint | None = field(default=None, init=False)
    over: bool = field(default=False, init=False)
    alone: bool = field(default=False, init=False)
    cramped: bool = field(default=False, init=False)
    started: float = field(default=0.0, init=False)
    chunks: list[Chunk] = field(default_factory=list, init=False)
    chunk: PrefillChunk | None = field(default=None, init=False)
    token: mx.array | None = field(default=None, init=False)
    """uint32 [1], without KV yet."""
    drafter: Drafter | None = field(default=None, init=False)
    prompted: bool = field(default=False, init=False)
    penalties: list[Processor] = field(default_factory=list, init=False)
    _trace: tracing.Trace | None = field(default_factory=tracing.current, init=False)

    def __post_init__(self) -> None:
        self.future.add_done_callback(partial(_end, self.said))
        self.sampler, self._answer = _sampler(self.decoding), AnswerStream()
        if (how := self.decoding) is not None:
            self.penalties = penalties(how.sampling, len(self.sequence))
            self._answer = AnswerStream(how.stop, how.call_syntax, how.tools, how.reasoning)

    @property
    def history(self) -> list[int]:
        return [*self.sequence, *self.result.token_ids]

    @cached_property
    def prompt(self) -> mx.array:
        """uint32 [tokens]."""
        return mx.array(list(self.sequence), dtype=mx.uint32)

    def between(self, start: int, end: int) -> list[int]:
        generated = len(self.sequence)
        later = self.result.token_ids[max(0, start - generated) : max(0, end - generated)]
        return [*self.sequence[start:end], *later]

    @property
    def tokens(self) -> int:
        return len(self.sequence) + len(self.result.token_ids)

    @property
    def position(self) -> int:
        return self.kv.length if self.kv is not None else self.reused

    @property
    def remaining(self) -> int:
        return self.tokens - self._computed

    @property
    def next_block(self) -> bytes:
        return self.blocks.at(self._computed)

    @property
    def _computed(self) -> int:
        return self.chunk.position if self.chunk else self.position

    def found(self, begin: Callable[[], Sequence] | None, reused: int) -> None:
        """KV of more tokens, or None."""
        self.blocks.looking = False
        if begin is not None and not self.started:
            self.begin, self.reused = begin, reused

    def start(self) -> None:
        began = time.monotonic()
        self.kv = self.begin()
        self.filled = self.kv.length
        self.reused = 0
        self.started = time.monotonic()
        self.blocks.begin(self.position)
        self.on_start(began, self.started - began, self.position)

    def computed(self, chunk: Chunk) -> Items[bytes]:
        """Return names of blocks that are full now."""
        assert self.kv is not None
        self.chunks.append(chunk)
        self.filled = position = chunk.position + chunk.tokens
        checkpoint = None
        if position < self.position:  # This position's state is gone.
            return self.blocks.keep(min(position, len(self.sequence)))
        wanted = position in self.checkpoints and not (self.decoding is not None and position == self.tokens)
        ends_block = position % BLOCK_TOKENS == 0 and position <= len(self.sequence)
        if wanted or (self.resumable and ends_block):
            if ends_block or not (checkpoint := self.store.capture(self.kv)):
                self._drop_latest()
            if checkpoint := checkpoint or self.store.capture(self.kv):
                self.captured |= {position: checkpoint} if wanted else {}
                self.latest = checkpoint if ends_block else self.latest
        return self.blocks.keep(position, checkpoint if wanted else None)

    def _drop_latest(self) -> None:
        if self.kv is not None and self.latest is not None and self.latest not in self.captured.values():
            self.store.drop(self.kv, self.latest)
        self.latest = None

    @property
    def greedy(self) -> bool:
        """True for the argmax of biased logits."""
        return self.sampler.greedy and not self.penalties

    @property
    def in_order(self) -> bool:
        return self.sampler.by_rows or bool(self.penalties)

    def prefilled(self) -> None:
        self.prompted = True
        self.result.prefill_seconds = self.result.prefill_seconds or time.monotonic() - self.started

    def restart(self) -> None:
        self.alone = True
        self.chunk = self.token = None
        if self.started:
            self.drop_kv()
            self.kv = self.begin()
            self.filled = self.kv.length
        elif self.anew is not None:
            self.begin, self.reused = self.anew, 0
        self.captured.clear()
        self.latest = None
        self.prompted = False
        if not self.result.token_ids:
            self.result.prefill_seconds = 0.0
            self.chunks.clear()
        self.sampler.rewind(self.result.token_ids)

    def take(self, token_id: int, tokenizer: Tokenizer) -> None:
        assert self.decoding is not None
        result, decoding = self.result, self.decoding
        self.sampler.check(len(result.token_ids))
        now = time.monotonic()
        result.first_token_at = result.first_token_at or now
        result.token_ids.append(token_id)
        ends = token_id in tokenizer.eos_ids
        piece = b"" if ends else tokenizer.token_bytes(token_id)
        said = self._answer.feed(piece, visible=token_id not in tokenizer.special_ids)
        logprob, top = self.sampler.next_logprobs()
        in_reasoning = self._answer.in_reasoning
        self.emit(
            TokenEvent(token_id, logprob, top, said.text, said.calls, now, said.reasoning, in_reasoning, said.parts)
        )
        if self._answer.matched is not None:
            result.reason = types_pb2.FINISH_REASON_STOP_STRING
        elif ends and not decoding.sampling.ignore_eos:
            result.reason = types_pb2.FINISH_REASON_STOP
        elif len(result.token_ids) >= decoding.max_tokens:
            result.reason = decoding.reason_at_max
        else:
            return
        self.over = True
        self._conclude()

    def _conclude(self) -> None:
        result = self.result
        result.sampled = len(result.token_ids)
        ended = result.reason == types_pb2.FINISH_REASON_STOP
        result.rest = self._answer.finish(ended=ended)
        result.reasoning_tokens = self._answer.reasoning_tokens
        result.stop_string = self._answer.matched or ""
        result.reason = self._reason()
        del result.token_ids[self._answer.tokens_before_stop() :]
        transient = self.decoding.transient_stops if self.decoding is not None and ended else ()
        # An answer has at least one token.
        if len(result.token_ids) > 1 and result.token_ids[-1] in transient:
            result.token_ids.pop()
        result.decode_seconds = time.monotonic() - self.started - result.prefill_seconds
        with suppress(InvalidStateError):  # The thread is being stopped.
            self.said.set_result(result)

    def finish(self) -> None:
        result = self.result
        if not self.said.done():  # It generates nothing.
            self._conclude()
        self.token = None
        if self.kv is not None:
            self.kv.trim(len(self.sequence) + len(result.token_ids))
            self.kv.working.clear()
        if not self.future.done():
            self.future.set_result((self.kv, result))

    def _reason(self) -> "types_pb2.FinishReason.ValueType":
        reason = self.result.reason
        if self._answer.matched is not None:
            reason = types_pb2.FINISH_REASON_STOP_STRING
        by_itself = reason in (types_pb2.FINISH_REASON_STOP, types_pb2.FINISH_REASON_STOP_STRING)
        return types_pb2.FINISH_REASON_TOOL_CALLS if by_itself and self._answer.called else reason

    def drop_kv(self) -> None:
        """The tokens are right: it can be computed again."""
        if self.kv is not None:
            self.kv.ended = True
            self.kv = None

    def fail(self, error: Exception) -> None:
        """The traceback goes: it holds arrays."""
        self.chunk = self.token = None
        self.drop_kv()
        self.captured.clear()
        if not isinstance(error, AgentmemError):
            with tracing.serving(self._trace):
                log.error("a turn failed", exc_info=error)
        if not self.future.done():
            self.future.set_exception(error.with_traceback(None))

    def cancel(self) -> None:
        """Full blocks of its prompt stay in the pool."""
        self.blocks.keep(min(self.filled, len(self.sequence)))
        self.fail(Cancelled("the request was cancelled"))


def _sampler(decoding: Decoding | None) -> TokenSampler:
    if decoding is None:
        return TokenSampler(Sampling())
    if decoding.grammar is None:
        return TokenSampler(decoding.sampling, decoding.top_logprobs)
    return ConstrainedSampler(decoding.sampling, decoding.grammar, decoding.top_logprobs)


def _end(said: "Future[Generated]", turn: "Future[tuple[Sequence | None, Generated]]") -> None:
    """Cancel or fail `said` if the turn ends early."""
    with suppress(InvalidStateError):
        if turn.cancelled():
            said.cancel()
        elif error := turn.exception():
            said.set_exception(error)
