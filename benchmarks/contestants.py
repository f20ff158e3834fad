"""Who the engine is measured against, and the engine itself, over one model in one process.

Each computes prompts, lets agents generate together, and lets one more join and leave. An agent is a `Row`: its tokens
and the caches that hold all of them but the last. Times are in seconds, memory in bytes.
"""

import copy
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.generate import BatchGenerator
from mlx_lm.models.cache import QuantizedKVCache as MlxLmQuantizedKVCache
from mlx_lm.models.cache import make_prompt_cache

from agentmem.blockfile import BLOCK_TOKENS
from inference_service.domain import Sampling
from inference_service.engine.attention import AttentionSeam, PathSpeeds
from inference_service.engine.batching import BatchEngine
from inference_service.engine.generation import Decoding, TurnJob
from inference_service.engine.geometry import merged
from inference_service.engine.tensors import Arenas
from inference_service.models.opening import ModelSpec, Quantization, measure, q4_caches

_ENDLESS = 1 << 30


@dataclass(frozen=True)
class Row:
    """An agent: its tokens, and caches of all of them but the last."""

    tokens: list[int]
    caches: list[Any]

    @classmethod
    def of(cls, tokens: Sequence[int], caches: list[Any]) -> "Row":
        """From caches that also hold a few tokens more, whose ids do not matter."""
        return cls([*tokens, *[tokens[-1]] * (caches[0].offset + 1 - len(tokens))], caches)

    def shortened(self, by: int) -> "Row":
        """The same without the last tokens; the caches share their arrays."""
        caches = [copy.copy(cache) for cache in self.caches]
        for cache in caches:
            if hasattr(cache, "buffers"):
                cache.buffers = copy.copy(cache.buffers)
            if by:
                cache.trim(by)
        return Row(self.tokens[: len(self.tokens) - by], caches)

    @property
    def nbytes(self) -> int:
        """Bytes of the caches, spare room included."""
        return sum(int(cache.nbytes) for cache in self.caches)


@dataclass(frozen=True)
class Prefilled:
    """A prompt computed, up to its first token. `peak` is memory over what was there before."""

    seconds: float
    peak: int
    row: Row


class Running(Protocol):
    """Agents that generate together."""

    def step(self) -> None:
        """One token for each."""

    def join(self, row: Row) -> None:
        """One more agent; returns with its first token."""

    def leave(self) -> None:
        """The agent that joined last leaves, and its caches are copied out."""


class Contestant(Protocol):
    """One way to serve the model."""

    name: str

    def prefill(self, tokens: Sequence[int]) -> Prefilled:
        """Compute a prompt from nothing, up to its first token."""

    def running(self, rows: Sequence[Row]) -> Running:
        """Let agents generate together; returns when each has its first token."""

    def resume(self, row: Row) -> float:
        """Turn an agent's KV at rest in memory into caches that can decode."""


class _NoText:
    """Random weights have no tokenizer: no token ends, and none has text."""

    special_ids: frozenset[int] = frozenset()
    eos_ids: frozenset[int] = frozenset()

    def token_bytes(self, token_id: int) -> bytes:  # noqa: ARG002
        return b""


class Ours:
    """The engine: Q4 caches behind the attention seam, turns on the batch engine."""

    name = "agentmem"

    def __init__(self, model: nn.Module, speeds: PathSpeeds | None = None) -> None:
        seam = AttentionSeam()
        seam.install(model)
        quantization = Quantization()
        spec = ModelSpec(self.name, Path(), quantization=quantization)
        self.geometry, _ = measure(self.name, model, seam, q4_caches(spec, model), quantization)
        self.paths = seam.self_test(self.geometry, speeds)
        weight_bytes = sum(array.nbytes for _, array in tree_flatten(model.parameters()))
        self.engine = BatchEngine(
            model,
            _NoText(),  # type: ignore[arg-type]
            self.geometry.new_caches,
            self.geometry.bytes_per_token,
            weight_bytes,
        )

    def job(self, tokens: Sequence[int], caches: Callable[[], Any], max_tokens: int, emit: Any) -> TurnJob:
        """A turn, queued."""
        decoding = Decoding(max_tokens, sampling=Sampling(ignore_eos=True))
        turn = TurnJob(tokens, caches, decoding, emit, threading.Event())
        self.engine.add(turn)
        return turn

    def prefill(self, tokens: Sequence[int]) -> Prefilled:
        """Through the engine's own chunks."""
        with _fresh_memory() as before:
            first: list[tuple[float, int]] = []
            started = time.perf_counter()
            turn = self.job(
                tokens,
                self.geometry.new_caches,
                1,
                lambda _: first.append((time.perf_counter() - started, mx.get_peak_memory() - before)),
            )
            while not turn.future.done():
                self.engine.tick()
        caches, _ = turn.future.result()
        return Prefilled(*first[0], Row.of(tokens, caches))

    def running(self, rows: Sequence[Row]) -> "_OursRunning":
        """On the batch engine."""
        return _OursRunning(self, rows)

    def resume(self, row: Row) -> float:
        """Gathering the pool's blocks, which lie in any order, and merging the caches into a batch of one."""
        geometry, tokens = self.geometry, row.caches[0].offset
        blocks = list(reversed(range(-(-tokens // BLOCK_TOKENS))))
        held = row.caches[geometry.sliding.layers[0]].size() if geometry.sliding else 0
        pieces = list(range(-(-held // geometry.piece_tokens))) if held else []
        arenas = Arenas(geometry, len(blocks), len(pieces))
        arenas.write(row.caches, 0, blocks, pieces)
        mx.synchronize()
        started = time.perf_counter()
        caches = arenas.caches(tokens, blocks, [], arenas.window(pieces, held) if pieces else ())
        mx.eval([cache.state for cache in merged(caches)])
        return time.perf_counter() - started


class _OursRunning:
    def __init__(self, ours: Ours, rows: Sequence[Row]) -> None:
        self._ours = ours
        self._turns: list[TurnJob] = []
        for row in rows:
            self.join(row)

    def step(self) -> None:
        self._ours.engine.tick()

    def join(self, row: Row) -> None:
        first = threading.Event()
        self._turns.append(self._ours.job(row.tokens, lambda: row.shortened(0).caches, _ENDLESS, lambda _: first.set()))
        while not first.is_set():
            self._ours.engine.tick()

    def leave(self) -> None:
        turn = self._turns.pop()
        turn.cancelled.set()
        self._ours.engine.tick()
        mx.synchronize()

    def __del__(self) -> None:
        while self._turns:
            self.leave()


class MlxLm:
    """mlx-lm's BatchGenerator with the model's default caches, in the compute dtype."""

    name = "mlx-lm"

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def prefill(self, tokens: Sequence[int]) -> Prefilled:
        """Through the generator's own chunks."""
        generator = BatchGenerator(self.model, max_tokens=_ENDLESS)
        with _fresh_memory() as before:
            started = time.perf_counter()
            [uid] = generator.insert([list(tokens)])
            while not generator.next()[1]:
                pass
            seconds, peak = time.perf_counter() - started, mx.get_peak_memory() - before
            caches, _ = generator.extract_cache([uid])[uid]
            mx.eval([cache.state for cache in caches])
        return Prefilled(seconds, peak, Row.of(tokens, caches))

    def running(self, rows: Sequence[Row]) -> "_MlxLmRunning":
        """On a batch generator."""
        return _MlxLmRunning(self.model, rows)

    def resume(self, row: Row) -> float:
        """Merging caches at rest into a batch of one."""
        started = time.perf_counter()
        mx.eval([cache.state for cache in (type(cache).merge([cache]) for cache in row.caches)])
        return time.perf_counter() - started


class _MlxLmRunning:
    def __init__(self, model: nn.Module, rows: Sequence[Row]) -> None:
        self._generator = BatchGenerator(model, max_tokens=_ENDLESS)
        self._uids: list[int] = []
        for row in rows:
            self.join(row)

    def step(self) -> None:
        self._generator.next()

    def join(self, row: Row) -> None:
        caches = row.shortened(0).caches
        [uid] = self._generator.insert([row.tokens[-1:]], caches=[caches], all_tokens=[row.tokens[:-1]])
        self._uids.append(uid)
        while not any(response.uid == uid for response in self._generator.next()[1]):
            pass

    def leave(self) -> None:
        uid = self._uids.pop()
        caches, _ = self._generator.remove([uid], return_prompt_caches=True)[uid]
        mx.eval([cache.state for cache in caches])
        self._generator.next()
        mx.synchronize()


class Alone:
    """One sequence with caches of mlx-lm's: its model called in chunks of 2048 tokens, then token by token."""

    def __init__(self, model: nn.Module, name: str, new_caches: Callable[[], list[Any]]) -> None:
        self.model = model
        self.name = name
        self._new_caches = new_caches

    @classmethod
    def plain(cls, model: nn.Module) -> "Alone":
        """The model's default caches, in the compute dtype."""
        return cls(model, "mlx-lm alone", lambda: make_prompt_cache(model))

    @classmethod
    def quantized(cls, model: nn.Module) -> "Alone":
        """mlx-lm's QuantizedKVCache, which knows no batches."""
        layers = len(make_prompt_cache(model))
        return cls(
            model,
            "mlx-lm QuantizedKVCache",
            lambda: [MlxLmQuantizedKVCache(group_size=64, bits=4) for _ in range(layers)],
        )

    def prefill(self, tokens: Sequence[int]) -> Prefilled:
        """As mlx-lm's generate_step does it."""
        caches = self._new_caches()
        with _fresh_memory() as before:
            started = time.perf_counter()
            for start in range(0, len(tokens) - 1, 2048):
                chunk = tokens[start : min(start + 2048, len(tokens) - 1)]
                self.model(mx.array([chunk]), cache=caches)
                mx.eval([cache.state for cache in caches])
                mx.clear_cache()
            mx.eval(mx.argmax(self.model(mx.array([tokens[-1:]]), cache=caches)[:, -1]))
            seconds, peak = time.perf_counter() - started, mx.get_peak_memory() - before
        return Prefilled(seconds, peak, Row.of(tokens, caches))

    def running(self, rows: Sequence[Row]) -> "_AloneRunning":
        """One row only."""
        [row] = rows
        return _AloneRunning(self.model, row)

    def resume(self, row: Row) -> float:  # noqa: ARG002
        """Caches at rest are ready."""
        return 0.0


class _AloneRunning:
    def __init__(self, model: nn.Module, row: Row) -> None:
        self._model = model
        self._caches = row.shortened(0).caches
        self._next = mx.array(row.tokens[-1:])

    def step(self) -> None:
        now = self._next
        self._next = mx.argmax(self._model(now[None], cache=self._caches)[:, -1], axis=-1)
        mx.async_eval(self._next)
        now.item()

    def join(self, row: Row) -> None:
        raise NotImplementedError

    def leave(self) -> None:
        raise NotImplementedError


@contextmanager
def _fresh_memory() -> Iterator[int]:
    """Start counting the peak; what is in use now."""
    mx.synchronize()
    mx.clear_cache()
    mx.reset_peak_memory()
    yield mx.get_active_memory()
