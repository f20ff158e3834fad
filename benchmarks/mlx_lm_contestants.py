"""mlx-lm as a contestant: its batch generator, and its model alone over one sequence."""

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.generate import BatchGenerator
from mlx_lm.models.cache import QuantizedKVCache as MlxLmQuantizedKVCache
from mlx_lm.models.cache import make_prompt_cache

from benchmarks.contestants import ENDLESS, Prefilled, fresh_memory


@dataclass(frozen=True)
class Row:
    """An agent: its tokens, and caches of all of them but the last."""

    tokens: list[int]
    caches: list[Any]

    @classmethod
    def of(cls, tokens: Sequence[int], caches: list[Any]) -> "Row":
        """Make a row of caches that also hold a few tokens more, whose ids do not matter."""
        end = next(cache.offset for cache in caches if hasattr(cache, "offset"))  # those of states have none
        return cls([*tokens, *[tokens[-1]] * (end + 1 - len(tokens))], caches)

    def shortened(self, by: int) -> "Row":
        caches = [copy.copy(cache) for cache in self.caches]
        for cache in caches:
            if hasattr(cache, "cache"):  # The arrays of states are replaced in their list.
                cache.cache = list(cache.cache)
            if by:
                cache.trim(by)
        return Row(self.tokens[: len(self.tokens) - by], caches)

    @property
    def nbytes(self) -> int:
        return sum(int(cache.nbytes) for cache in self.caches)


class MlxLm:
    name = "mlx-lm"

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def prefill(self, tokens: Sequence[int]) -> Prefilled:
        generator = BatchGenerator(self.model, max_tokens=ENDLESS)
        with fresh_memory() as before:
            started = time.perf_counter()
            [uid] = generator.insert([list(tokens)])
            while not generator.next()[1]:
                pass
            seconds, peak = time.perf_counter() - started, mx.get_peak_memory() - before
            caches, _ = generator.extract_cache([uid])[uid]
            mx.eval([cache.state for cache in caches])
        return Prefilled(seconds, peak, Row.of(tokens, caches))

    def running(self, rows: Sequence[Row], tokens: int) -> "_MlxLmRunning":  # noqa: ARG002
        return _MlxLmRunning(self.model, rows)

    def resume(self, row: Row) -> float:
        started = time.perf_counter()
        mx.eval([cache.state for cache in (type(cache).merge([cache]) for cache in row.caches)])
        return time.perf_counter() - started


class _MlxLmRunning:
    def __init__(self, model: nn.Module, rows: Sequence[Row]) -> None:
        self._generator = BatchGenerator(model, max_tokens=ENDLESS)
        for row in rows:
            self._join(row)

    def step(self) -> None:
        self._generator.next()

    def _join(self, row: Row) -> None:
        caches = row.shortened(0).caches
        [uid] = self._generator.insert([row.tokens[-1:]], caches=[caches], all_tokens=[row.tokens[:-1]])
        while not any(response.uid == uid for response in self._generator.next()[1]):
            pass


class Alone:
    """One sequence with caches of mlx-lm's: its model called in chunks of 2048 tokens, then token by token."""

    def __init__(self, model: nn.Module, name: str, new_caches: Callable[[], list[Any]]) -> None:
        self.model = model
        self.name = name
        self._new_caches = new_caches

    @classmethod
    def plain(cls, model: nn.Module) -> "Alone":
        return cls(model, "mlx-lm alone", lambda: make_prompt_cache(model))

    @classmethod
    def quantized(cls, model: nn.Module) -> "Alone":
        layers = len(make_prompt_cache(model))
        return cls(
            model,
            "mlx-lm QuantizedKVCache",
            lambda: [MlxLmQuantizedKVCache(group_size=64, bits=4) for _ in range(layers)],
        )

    def prefill(self, tokens: Sequence[int]) -> Prefilled:
        caches = self._new_caches()
        with fresh_memory() as before:
            started = time.perf_counter()
            for start in range(0, len(tokens) - 1, 2048):
                chunk = tokens[start : min(start + 2048, len(tokens) - 1)]
                self.model(mx.array([chunk]), cache=caches)
                mx.eval([cache.state for cache in caches])
                mx.clear_cache()
            mx.eval(mx.argmax(self.model(mx.array([tokens[-1:]]), cache=caches)[:, -1]))
            seconds, peak = time.perf_counter() - started, mx.get_peak_memory() - before
        return Prefilled(seconds, peak, Row.of(tokens, caches))

    def running(self, rows: Sequence[Row], tokens: int) -> "_AloneRunning":  # noqa: ARG002
        [row] = rows
        return _AloneRunning(self.model, row)

    def resume(self, row: Row) -> float:  # noqa: ARG002
        return 0.0


class _AloneRunning:
    def __init__(self, model: nn.Module, row: Row) -> None:
        self._model = model
        self._caches = row.shortened(0).caches
        self._next = mx.array(row.tokens[-1:])

    def step(self) -> None:
        now = self._next
        self._next = mx.argmax(self._model(now[None], cache=self._caches)[:, -1], axis=-1)
        mx.async_eval(self._next)  # type: ignore[no-untyped-call]
        now.item()
