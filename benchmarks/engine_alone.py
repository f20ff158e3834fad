"""The engine in a process of its own, without services: agents that generate together.

    python -m benchmarks.engine_alone MODEL_DIRECTORY

Answers questions on stdin (`benchmarks.children`). Weights, dtype, caches, batches and attention are the worker's; what
is missing is text, turns, streams and the other processes. "products" times what the engine rests on.
"""

import sys
import tempfile
import time
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


def products() -> dict[str, Any]:
    """Operations per second in float32 products of matrices, and whether this process has OpenBLAS."""
    [found] = checks.matrix_products()
    return dict(found.facts)


if __name__ == "__main__":
    alone = EngineAlone(sys.argv[1])
    answer({"decode": alone.decode, "prefill": alone.prefill, "processor": cpu_seconds, "products": products})
