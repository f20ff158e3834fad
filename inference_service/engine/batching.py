"""Continuous batching: one pass for all running rows and short prompts, then a chunk of a long prompt, again and again.

Rows are tokens with a position each, wherever their sequence's blocks lie, so a turn joins and leaves without a copy. A
short prompt rides along as so many rows of its own: the weights are read once for it and for who decodes, and its first
token comes with the pass. The next pass is on its way to the device before the tokens of the one before are looked at.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import mlx.core as mx

from inference_service.engine.generation import Chunk, TurnJob
from inference_service.engine.headroom import ran_out
from inference_service.engine.paged.passes import Pass, Piece
from inference_service.engine.paged.store import Written
from inference_service.engine.prompts import PromptEngine, guarded
from inference_service.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)


class _Flight(NamedTuple):
    """A pass that is being computed: its jobs, in the order of its pieces, their next tokens [jobs], and what is to be
    put into blocks. `began` is the time of prompts in it."""

    jobs: list[TurnJob]
    tokens: mx.array
    written: Written
    ends: list[int]
    """Tokens of each job whose KV is there once it is computed."""
    began: float


@dataclass(eq=False, repr=False, kw_only=True)
class BatchEngine(PromptEngine):
    """Runs the turns of one model. Engine thread only: `add`, then `step` as long as it says that there is more.

    When a pass raises, every turn in it goes on from the KV that it began with, in passes of its own, and only those
    that fail there are ended.
    """

    tokenizer: Tokenizer
    _running: list[TurnJob] = field(default_factory=list, init=False)
    _flights: list[_Flight] = field(default_factory=list, init=False)

    @property
    def running(self) -> int:
        """Turns that generate."""
        return len(self._running)

    def close(self) -> None:
        """Release the model. No turn may run or wait any more."""
        self.model = None

    def add(self, job: TurnJob) -> None:
        """Queue a turn, unless its future was cancelled meanwhile."""
        if job.future.set_running_or_notify_cancel():
            job.capture = self.store.capture
            self._waiting.append(job)

    def step(self) -> bool:
        """Have one pass computed, and one chunk of a long prompt, or as much of it as there is time for; take the
        tokens of the pass before.

        Returns whether anything is left to do.
        """
        self._drop_cancelled()
        before, self._flights = self._flights, []
        if not all(job.kv is not None and job.kv.arrays for job in self._running):
            self._take_all(before)  # What is made of blocks for each pass needs all tokens there.
            before = []
        for lane in self._lanes(self._riders(), before):
            guarded(partial(self._launch, lane), partial(self._failed, lane))
        self._take_all(before)
        if self._waiting:
            self._advance()
        if self._to_clear:
            self._to_clear = False
            mx.clear_cache()
        if not (self._waiting or self._running):
            self._kept.clear()
        return bool(self._ready or self._running or self._flights)

    def _drop_cancelled(self) -> None:
        self._drop_cancelled_prompts()
        for job in [job for job in self._running if job.cancelled.is_set()]:
            self._running.remove(job)
            job.cancel()

    def _lanes(self, riders: Sequence[TurnJob], flights: Sequence[_Flight]) -> list[list[TurnJob]]:
        """The jobs of each pass: those that may be together, and each other one by itself.

        Who is over has one more, in which the KV of its last token comes, unless that is in a flight already.
        """
        flying = {job for flight in flights for job in flight.jobs}
        jobs = [*(job for job in self._running if not (job.over and job in flying)), *riders]
        together = [job for job in jobs if self.model.rows_together and not job.alone]
        return [lane for lane in (together, *([job] for job in jobs if job not in together)) if lane]

    def _launch(self, jobs: list[TurnJob]) -> None:
        """Have the next tokens of these jobs computed: of who decodes the last that was sampled, of a prompt all."""
        pieces, ids = [], []
        for job in jobs:
            assert job.kv is not None
            new = [] if job.token is not None else job.between(job.position, job.tokens)
            ids.append(job.token if job.token is not None else mx.array(new, dtype=mx.uint32))
            pieces.append(Piece(job.kv, max(1, len(new))))
        of = Pass(pieces, rows=True if len(pieces) == pieces[0].tokens == 1 and not self.store.by_arrays else None)
        began = time.monotonic()
        self._make_room(of)
        logits, written = self.compute(of, mx.concatenate(ids))
        last = [end - 1 for _, _, end, _ in of.spans()]
        rows = logits[:, 0] if of.rows else logits[0]
        rows = rows if len(last) == of.tokens else rows[mx.array(last)]
        tokens = _sampled(rows, jobs)
        mx.async_eval(tokens, written.state)  # type: ignore[no-untyped-call]
        for at, job in enumerate(jobs):
            job.token = tokens[at : at + 1]
            if job in self._waiting:
                self._waiting.remove(job)
                self._running.append(job)
        self._flights.append(_Flight(jobs, tokens, written, [job.position for job in jobs], began))

    def _take_all(self, flights: Sequence[_Flight]) -> None:
        for flight in flights:
            guarded(partial(self._take, flight), partial(self._failed, flight.jobs))

    def _take(self, flight: _Flight) -> None:
        """Take the tokens of a pass, which is computed first, and end the turns that are over."""
        tokens: list[int] = flight.tokens.tolist()  # type: ignore[assignment]
        flight.written.put()
        self.stepped("decode")
        for job, token, end in zip(flight.jobs, tokens, flight.ends, strict=True):
            if job not in self._running:
                continue
            if not job.prompted:
                self._prompt_done(job, flight, end)
            job.filled = end
            if job.over:
                self._running.remove(job)
                self._finish(job)
            else:
                guarded(partial(job.take, token, self.tokenizer), partial(self._end, job))

    def _prompt_done(self, job: TurnJob, flight: _Flight, end: int) -> None:
        """The last of a prompt was in a pass."""
        began, tokens = job.filled, end - job.filled
        together = len(flight.jobs) > 1
        self._name(job.computed(Chunk(flight.began, time.monotonic(), began, tokens, alone=not together)))
        job.prefilled()

    def _end(self, job: TurnJob, error: Exception) -> None:
        self._running.remove(job)
        job.fail(error)

    def _make_room(self, of: Pass) -> None:
        """Raise ResourceExhausted where there is no memory for what a pass takes besides computing."""
        self.headroom.require(self.store.growth(of), f"a step of {len(of.pieces)} requests")

    def _failed(self, jobs: Sequence[TurnJob], error: Exception) -> None:
        """A pass failed: go on with every turn by itself. One that was alone is the one that fails."""
        log.warning("a step of %d turns failed", len(jobs), exc_info=error)
        full = ran_out(error)
        error.__traceback__ = None  # Its frames hold arrays.
        after = [flight for flight in self._flights if not set(flight.jobs).isdisjoint(jobs)]
        self._flights = [flight for flight in self._flights if flight not in after]
        if full:
            self.headroom.recover()
        else:
            self.model.give_up_compiling(error)
        for job in dict.fromkeys([*jobs, *(job for flight in after for job in flight.jobs)]):
            if job in self._running:
                self._running.remove(job)
            elif job in self._waiting:
                self._waiting.remove(job)
            else:
                continue
            if job.cancelled.is_set():
                job.cancel()
            elif job.over:  # Only KV of its last token was to come.
                job.drop_kv()
                self._finish(job)
            elif job.alone:
                job.fail(self.headroom.explained(error))
            else:
                self._go_on_alone(job, cramped=full)

    def _go_on_alone(self, job: TurnJob, *, cramped: bool) -> None:
        job.cramped = cramped
        guarded(job.restart, job.fail)
        if not job.future.done():
            self._waiting.append(job)


def _sampled(logits: mx.array, jobs: Sequence[TurnJob]) -> mx.array:
    """The next token of each job, int [jobs], lazily; `logits` [jobs, vocabulary]."""
    likeliest = mx.argmax(logits, axis=-1)
    if all(job.greedy for job in jobs):
        return likeliest
    found = []
    for row, job in enumerate(jobs):
        if job.greedy:
            found.append(likeliest[row : row + 1])
            continue
        own = logits[row : row + 1]
        if job.changes:
            history = mx.array(job.history, dtype=mx.uint32)
            seen = history if job.token is None else mx.concatenate([history, job.token])
            for change in job.changes:
                own = change(seen, own)
        found.append(job.sampler(own - mx.logsumexp(own, axis=-1, keepdims=True)).astype(mx.uint32))
    return mx.concatenate(found)
