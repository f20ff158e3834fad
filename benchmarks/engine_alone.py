"""The engine in a process of its own, without services: agents that generate together.

    python -m benchmarks.engine_alone MODEL_DIRECTORY

Answers questions on stdin (`benchmarks.children`). Weights, dtype, KV in blocks, passes and attention are the worker's;
what is missing is text, turns, streams and the other processes.
"""

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm

from benchmarks.children import answer
from benchmarks.contestants import Ours, Row
from benchmarks.prompts import token_ids
from inference_service.engine.paged.sequence import Sequence as KVSequence
from inference_service.engine.product_speeds import ProductSpeeds

_SPARE = 8
"""Tokens that an agent may generate besides those that are measured."""
_JOIN_STEPS = 3
"""Steps until a row that joins has its first token, at most: those before it generate meanwhile."""


class EngineAlone:
    """One model and agents of each length that was asked for, computed once."""

    def __init__(self, directory: str) -> None:
        model = mlx_lm.load(directory)[0]
        if mx.default_device().type == mx.DeviceType.cpu:
            model.set_dtype(mx.float32)
        with tempfile.TemporaryDirectory() as cache:
            self._ours = Ours(model, ProductSpeeds(Path(cache) / "products.json"))
        self._rows: dict[int, Row] = {}

    def decode(self, agents: int, context: int, tokens: int) -> dict[str, float]:
        """Let so many agents with `context` tokens each generate `tokens`; from when all of them have begun."""
        if context not in self._rows:
            self._rows[context] = self._ours.prefill(token_ids(context, "engine alone")).row
        running = self._ours.running([self._rows[context]] * agents, tokens + _JOIN_STEPS * agents + _SPARE)
        running.step()  # all of them are in one pass
        began = time.perf_counter()
        for _ in range(tokens):
            running.step()
        seconds = time.perf_counter() - began
        del running
        mx.clear_cache()
        return {"tokens_per_second": agents * tokens / seconds}

    def work(self, agents: int, context: int, new: int, generated: int, turns: int) -> dict[str, Any]:
        """Let so many agents take all of `turns` but the first, each without a pause."""
        if context not in self._rows:
            self._rows[context] = self._ours.prefill(token_ids(context, "engine alone")).row
        workers = [_Worker(self._ours, self._rows[context], new, generated) for _ in range(agents)]
        began = time.perf_counter()
        for worker in workers:
            worker.begin()
        while not all([worker.done(turns) for worker in workers]):
            self._ours.engine.step()
        seconds = time.perf_counter() - began
        mx.clear_cache()
        return {"seconds": seconds, "turns": [worker.turns for worker in workers]}


class _Worker:
    """An agent that takes turn after turn of the engine, in blocks of its own.

    Of each turn there are also the seconds until it had the KV that it goes on from ("join"), and in which what a later
    one goes on from was kept ("leave"); the bytes that were copied in these, and the most that was allocated.
    """

    def __init__(self, ours: Ours, row: Row, new: int, generated: int) -> None:
        self._ours, self._new, self._generated = ours, new, generated
        self._row = ours.copied(row, len(row.tokens))
        self.turns: list[dict[str, Any]] = []

    def begin(self) -> None:
        """Take up the next turn, after all that was said before."""
        row = self._row
        known = row.tokens[: row.length]
        prompt = [*known, *token_ids(self._new, f"turn {len(self.turns)}")]
        self._place, self._start = self._ours.going_on(row, len(prompt) + self._generated)
        self._arrivals: list[float] = []
        self._cost = {"join": 0.0, "leave": 0.0, "copied": 0, "allocated": 0}
        self._sent = time.perf_counter()
        self._job = self._ours.job(prompt, self._begun, self._generated, self._arrive, len(known))

    def _begun(self) -> KVSequence:
        with self._measured("join"):
            sequence = self._start()
        self._cost["copied"] += self._ours.store.start_bytes(sequence.length)  # as arrays, in the step that follows
        return sequence

    def done(self, turns: int) -> bool:
        """Go on to the next turn where one has ended; return whether all have."""
        if len(self.turns) < turns - 1 and self._job.future.done():
            with self._measured("leave"):
                self._row = self._ours.left(self._job, self._place)
            if len(self._arrivals) != self._generated:
                raise RuntimeError(f"a turn had {len(self._arrivals)} tokens instead of {self._generated}")
            gaps = [round(later - earlier, 6) for earlier, later in pairwise(self._arrivals)]
            self.turns.append({"first": self._arrivals[0] - self._sent, "gaps": gaps, **self._cost})
            if len(self.turns) < turns - 1:
                self.begin()
        return len(self.turns) == turns - 1

    @contextmanager
    def _measured(self, what: str) -> Iterator[None]:
        copied, before = self._ours.places.copied, mx.get_active_memory()
        mx.reset_peak_memory()
        began = time.perf_counter()
        yield
        self._cost[what] = time.perf_counter() - began
        self._cost["copied"] += self._ours.places.copied - copied
        self._cost["allocated"] = max(self._cost["allocated"], mx.get_peak_memory() - before)

    def _arrive(self, _event: Any) -> None:
        self._arrivals.append(time.perf_counter())


if __name__ == "__main__":
    alone = EngineAlone(sys.argv[1])
    answer({"decode": alone.decode, "work": alone.work})
