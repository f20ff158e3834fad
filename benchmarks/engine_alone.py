"""The engine in a process of its own, without services: agents that generate together.

    python -m benchmarks.engine_alone MODEL_DIRECTORY

Answers questions on stdin (`benchmarks.children`). Weights, dtype, caches, batches and attention are the worker's; what
is missing is text, turns, streams and the other processes. "products" times what the engine rests on.
"""

import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm

from benchmarks.children import answer, cpu_seconds
from benchmarks.contestants import Ours, Row
from benchmarks.prompts import token_ids
from inference_service.doctor import checks
from inference_service.models.proof import Speeds


class EngineAlone:
    """One model and agents of each length that was asked for, computed once."""

    def __init__(self, directory: str) -> None:
        model = mlx_lm.load(directory)[0]
        if mx.default_device().type == mx.DeviceType.cpu:
            model.set_dtype(mx.float32)
        with tempfile.TemporaryDirectory() as cache:
            self._ours = Ours(model, Speeds.kept_in(Path(cache)))
        self._rows: dict[int, Row] = {}

    def prefill(self, tokens: int, seed: str) -> float:
        """Seconds to the first token behind so many, drawn by `seed`."""
        return self._ours.prefill(token_ids(tokens, seed)).seconds

    def decode(self, agents: int, context: int, tokens: int) -> dict[str, float]:
        """Let so many agents with `context` tokens each generate `tokens`; from when all of them have begun."""
        if context not in self._rows:
            self._rows[context] = self._ours.prefill(token_ids(context, "engine alone")).row
        running = self._ours.running([self._rows[context].shortened(0) for _ in range(agents)])
        running.step()  # the rows are brought into one batch
        used, began = cpu_seconds(), time.perf_counter()
        for _ in range(tokens):
            running.step()
        seconds, used = time.perf_counter() - began, cpu_seconds() - used
        del running
        mx.clear_cache()
        return {"tokens_per_second": agents * tokens / seconds, "seconds": seconds, "cpu_seconds": used}

    def work(self, agents: int, context: int, new: int, generated: int, turns: int) -> dict[str, Any]:
        """Let so many agents take all of `turns` but the first, each without a pause."""
        if context not in self._rows:
            self._rows[context] = self._ours.prefill(token_ids(context, "engine alone")).row
        workers = [_Worker(self._ours, self._rows[context].shortened(0), new, generated) for _ in range(agents)]
        began = time.perf_counter()
        for worker in workers:
            worker.begin()
        while not all([worker.done(turns) for worker in workers]):
            self._ours.engine.step()
        seconds = time.perf_counter() - began
        mx.clear_cache()
        return {"seconds": seconds, "turns": [worker.turns for worker in workers]}


class _Worker:
    """An agent that takes turn after turn of the engine."""

    def __init__(self, ours: Ours, row: Row, new: int, generated: int) -> None:
        self._ours, self._row, self._new, self._generated = ours, row, new, generated
        self.turns: list[dict[str, Any]] = []

    def begin(self) -> None:
        """Take up the next turn, after all that was said before."""
        caches = self._row.caches
        known = self._row.tokens[: len(self._row.tokens) - 1]
        prompt = [*known, *token_ids(self._new, f"turn {len(self.turns)}")]
        self._arrivals: list[float] = []
        self._sent = time.perf_counter()
        self._job = self._ours.job(prompt, lambda: caches, self._generated, self._arrive, len(known))

    def done(self, turns: int) -> bool:
        """Go on to the next turn where one has ended; return whether all have."""
        if len(self.turns) < turns - 1 and self._job.future.done():
            caches, _ = self._job.future.result()
            if len(self._arrivals) != self._generated:
                raise RuntimeError(f"a turn had {len(self._arrivals)} tokens instead of {self._generated}")
            self._row = Row.of(self._job.sequence, caches)
            gaps = [round(later - earlier, 6) for earlier, later in pairwise(self._arrivals)]
            self.turns.append({"first": self._arrivals[0] - self._sent, "gaps": gaps})
            if len(self.turns) < turns - 1:
                self.begin()
        return len(self.turns) == turns - 1

    def _arrive(self, _event: Any) -> None:
        self._arrivals.append(time.perf_counter())


def products() -> dict[str, Any]:
    """Operations per second in float32 products of matrices, and whether this process has OpenBLAS."""
    [found] = checks.matrix_products()
    return dict(found.facts)


if __name__ == "__main__":
    alone = EngineAlone(sys.argv[1])
    answer(
        {
            "decode": alone.decode,
            "work": alone.work,
            "prefill": alone.prefill,
            "processor": cpu_seconds,
            "products": products,
        }
    )
