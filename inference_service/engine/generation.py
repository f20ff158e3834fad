"""One turn on the engine thread: prefill in chunks, decode token by token, settle."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from agentmem.errors import Cancelled
from agentmem.v1 import types_pb2
from inference_service.domain import Sampling, TokenEvent
from inference_service.engine.geometry import Caches
from inference_service.engine.sampling import TokenSampler, top_logprobs
from inference_service.memory.chunks import chunk_tokens
from inference_service.text.streaming import TextStream
from inference_service.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Decoding:
    """How to generate. `max_tokens` is at least 1 and already bounded by the context."""

    max_tokens: int
    reason_at_max: "types_pb2.FinishReason.ValueType" = types_pb2.FINISH_REASON_LENGTH
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    top_logprobs: int | None = None


@dataclass
class Generated:
    """What a turn generated. `token_ids` are those that stay: a stop string and what follows it are cut off.

    `sampled` counts all tokens, the ones cut off included; times are in seconds.
    """

    token_ids: list[int] = field(default_factory=list)
    reason: "types_pb2.FinishReason.ValueType" = types_pb2.FINISH_REASON_PREFILLED
    stop_string: str = ""
    rest: str = ""
    sampled: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    first_token_at: float | None = None


class CacheLengthError(Exception):
    """A cache does not hold what it should; drop it and compute it again from the ledger."""


class Generator:
    """Runs turns of one model, one at a time. Engine thread only, but for `cancelled` events."""

    def __init__(self, model: Any, tokenizer: Tokenizer) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._tokens_per_second = 0.0

    def run(
        self,
        caches: Caches,
        sequence: Sequence[int],
        decoding: Decoding | None,
        emit: Callable[[TokenEvent], None],
        cancelled: threading.Event,
    ) -> Generated:
        """Bring `caches`, which hold a beginning of `sequence`, to its end, and generate.

        Without `decoding` nothing is generated and the caches hold all of `sequence`. Otherwise they hold all that was
        fed, at least all but the last generated token; `settle` makes that exact. Raises Cancelled within one chunk or
        one decode step after `cancelled` is set.
        """
        started = time.monotonic()
        position = caches[0].offset
        _check_lengths(caches, position)
        # The last token is run alone: its logits are what decoding starts from.
        last = len(sequence) - 1
        while position < last:
            _check(cancelled)
            position += self._prefill(caches, sequence[position:last], position)
        _check(cancelled)
        logits = self._step(caches, sequence[last])
        mx.clear_cache()
        result = Generated(prefill_seconds=time.monotonic() - started)
        if decoding is not None:
            self._decode(caches, logits, sequence, decoding, emit, cancelled, result)
            result.decode_seconds = time.monotonic() - started - result.prefill_seconds
        return result

    def settle(self, caches: Caches, sequence: Sequence[int]) -> None:
        """Bring the caches to exactly `sequence`: trim what a stop string cut off, feed what was sampled last."""
        _check_lengths(caches, caches[0].offset)
        surplus = max(0, caches[0].offset - len(sequence))
        if not all(cache.can_trim(surplus) for cache in caches):
            raise CacheLengthError(f"{surplus} tokens cannot be trimmed: a sliding layer's window before them is gone")
        for cache in caches:
            cache.trim(surplus)
        for token_id in sequence[caches[0].offset :]:
            self._step(caches, token_id)
        _check_lengths(caches, len(sequence))

    def _prefill(self, caches: Caches, token_ids: Sequence[int], position: int) -> int:
        chunk = token_ids[: chunk_tokens(position, self._tokens_per_second)]
        started = time.monotonic()
        self._model(mx.array([chunk]), cache=caches)
        mx.eval([cache.state for cache in caches])
        if len(chunk) >= 128:
            self._tokens_per_second = len(chunk) / (time.monotonic() - started)
        return len(chunk)

    def _step(self, caches: Caches, token_id: int) -> mx.array:
        logits: mx.array = self._model(mx.array([[token_id]]), cache=caches)[:, -1, :]
        mx.eval(logits, [cache.state for cache in caches])
        return logits

    def _decode(
        self,
        caches: Caches,
        logits: mx.array,
        prompt: Sequence[int],
        decoding: Decoding,
        emit: Callable[[TokenEvent], None],
        cancelled: threading.Event,
        result: Generated,
    ) -> None:
        sampler = TokenSampler(decoding.sampling, prompt)
        text = TextStream(decoding.stop)
        while True:
            token_id = sampler.sample(logits)
            result.first_token_at = result.first_token_at or time.monotonic()
            result.token_ids.append(token_id)
            special = token_id in self._tokenizer.special_ids or token_id in self._tokenizer.eos_ids
            visible = text.feed(b"" if special else self._tokenizer.token_bytes(token_id))
            wanted = decoding.top_logprobs
            logprob, top = (None, ()) if wanted is None else top_logprobs(logits, token_id, wanted)
            emit(TokenEvent(token_id, logprob, top, visible))
            if reason := self._end(decoding, token_id, text, len(result.token_ids)):
                break
            _check(cancelled)
            logits = self._step(caches, token_id)
        result.reason = reason
        result.sampled = len(result.token_ids)
        result.stop_string = text.matched or ""
        result.rest = text.finish()
        del result.token_ids[text.tokens_before_stop() :]

    def _end(
        self, decoding: Decoding, token_id: int, text: TextStream, generated: int
    ) -> "types_pb2.FinishReason.ValueType | None":
        if text.matched is not None:
            return types_pb2.FINISH_REASON_STOP_STRING
        if token_id in self._tokenizer.eos_ids and not decoding.sampling.ignore_eos:
            return types_pb2.FINISH_REASON_STOP
        return decoding.reason_at_max if generated >= decoding.max_tokens else None


def _check_lengths(caches: Caches, tokens: int) -> None:
    lengths = {cache.offset for cache in caches}
    if lengths != {tokens}:
        raise CacheLengthError(f"layers hold {sorted(lengths)} tokens instead of {tokens}")


def _check(cancelled: threading.Event) -> None:
    if cancelled.is_set():
        raise Cancelled("the request was cancelled")
