"""Continuous batching: a pass for all running rows and short prompts, then a chunk of a long prompt.

The next pass is launched before the previous one's tokens are read.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import mlx.core as mx

from inference_service.engine.choosing import next_tokens
from inference_service.engine.device import on_cpu
from inference_service.engine.generation import Chunk, TurnJob
from inference_service.engine.headroom import ran_out
from inference_service.engine.paged.passes import Pass, Piece
from inference_service.engine.paged.writing import Written
from inference_service.engine.prompts import PromptEngine, guarded
from inference_service.engine.speculation import Speculation, sampled_along
from inference_service.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)


class _Flight(NamedTuple):
    """A launched pass: jobs by piece, next tokens [jobs], tokens with KV then, K and V for blocks."""

    jobs: list[TurnJob]
    tokens: mx.array
    written: Written
    ends: list[int]
    began: float


def _has_first_tokens(flights: Sequence[_Flight]) -> bool:
    return any(not job.prompted for flight in flights for job in flight.jobs)


@dataclass(eq=False, repr=False, kw_only=True)
class BatchEngine(PromptEngine):
    """Engine thread only: `add`, then `step` while it returns True.

    When a pass raises, each of its turns restarts alone; only those that fail there end.
    """

    tokenizer: Tokenizer
    speculative: bool = False
    speculated: Callable[[int, int], object] = lambda _drafted, _accepted: None
    _speculation: Speculation = field(init=False)
    _running: list[TurnJob] = field(default_factory=list, init=False)
    _flights: list[_Flight] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._speculation = Speculation(self.tokenizer)

    @property
    def running(self) -> int:
        return len(self._running)

    def close(self) -> None:
        """No turn may run or wait."""
        self.model = None

    def add(self, job: TurnJob) -> None:
        if job.future.set_running_or_notify_cancel():
            job.store = self.store.checkpoints
            self._waiting.append(job)

    def step(self) -> bool:
        """Launch a pass, take the one before, compute a chunk. Return whether anything is left."""
        self._drop_cancelled()
        if self._gathers():
            return True
        before, self._flights = self._flights, []
        if self.store.by_arrays and not all(job.kv is not None and job.kv.arrays for job in self._running):
            self._take_all(before)
            before = []
        if on_cpu() and _has_first_tokens(before):  # It computes while launching.
            self._take_all(before)
            before = []
        riders = self._riders()
        if before and self._grows(riders):
            self._take_all(before)
            before = []
        drafts = {} if riders else self._drafts()
        if drafts and before:
            self._take_all(before)  # A draft needs the last token.
            before, drafts = [], self._drafts()
        if drafts:
            guarded(partial(self._speculate, drafts), partial(self._failed, list(drafts)))
            drafts = self._drafts()
        for lane in [] if drafts else self._lanes(riders):
            guarded(partial(self._launch, lane), partial(self._failed, lane))
        plain = self._are_plain(before)
        self._take_all(before)
        self._speculation.ended(before[0].jobs if plain else ())
        if (job := self._next()) is not None:
            # A first token does not wait for another's chunk.
            if on_cpu() or _has_first_tokens(self._flights):
                before, self._flights = self._flights, []
                self._take_all(before)
            self._advance(job)
        if self._to_clear:
            self._to_clear = False
            mx.clear_cache()
        return bool(self._ready or self._running or self._flights)

    def _are_plain(self, before: Sequence[_Flight]) -> bool:
        same = len(before) == 1 and [flight.jobs for flight in self._flights] == [before[0].jobs]
        return same and not self.prompts and all(job.prompted for job in before[0].jobs)

    def _drop_cancelled(self) -> None:
        self._drop_cancelled_prompts()
        for job in [job for job in self._running if job.cancelled.is_set()]:
            self._running.remove(job)
            guarded(job.cancel, job.fail)

    def _speculating(self) -> list[TurnJob]:
        """Return the turns that may compute several tokens in a step: states cannot be trimmed."""
        together = len(self._running) == 1 or (self.model.rows_together and self.model.rides)
        if not (self.speculative and together and len(self._running) <= self._speculation.most_turns):
            return []
        if self.store.geometry.in_order or self.gathering.expected:
            return []
        if any(job.over or job.alone for job in self._running) or len(self._within_memory(self._running)) > 1:
            return []
        return list(self._running)

    def _drafts(self) -> dict[TurnJob, list[int]]:
        jobs = self._speculating()
        return dict(zip(jobs, self._speculation.drafts(jobs), strict=False)) if jobs else {}

    def _speculate(self, drafts: Mapping[TurnJob, list[int]]) -> None:
        jobs = list(drafts)
        began, costs = time.perf_counter(), self._speculation.costs(jobs)
        pieces, ids = [], []
        for job, draft in drafts.items():
            assert job.kv is not None
            job.token = None
            pieces.append(Piece(job.kv, 1 + len(draft)))
            ids += [*job.between(job.tokens - 1, job.tokens), *draft]
        self._make_room(pieces)
        of = Pass(pieces, rows=True if self.store.traces is not None and self.model.rides else None)
        logits, written = self.store.compute(self.model, of, mx.array(ids, dtype=mx.uint32))
        found = sampled_along(logits, jobs, list(drafts.values()))
        mx.eval(written.state)
        written.put()
        self.stepped("decode")
        drafted = len(ids) - len(jobs)
        if not self.prompts:
            costs.took(drafted, time.perf_counter() - began)
        self.speculated(drafted, sum(map(len, found)) - len(jobs))
        for (kv, computed), job, tokens in zip(pieces, jobs, found, strict=True):
            kv.trim(kv.length - (computed - len(tokens)))
            job.filled = kv.length
            for token in tokens:
                if job.over or job not in self._running:
                    break
                guarded(partial(job.take, token, self.tokenizer), partial(self._end, job))
            if job in self._running and job.over and kv.length >= job.tokens:
                self._running.remove(job)
                self._finish(job)

    def _lanes(self, riders: Sequence[TurnJob]) -> list[list[TurnJob]]:
        """Return each pass's jobs. A turn that is over may need its last token's KV."""
        jobs = [*(job for job in self._running if not job.over or job.position < job.tokens), *riders]
        in_order = self.store.geometry.in_order

        def joins(job: TurnJob) -> bool:
            """A state's first pass is alone."""
            return self.model.rows_together and not job.alone and not (in_order and not job.position)

        together = [job for job in jobs if joins(job)]
        lanes = (*self._within_memory(together), *([job] for job in jobs if job not in together))
        return [lane for lane in lanes if lane]

    def _within_memory(self, jobs: Sequence[TurnJob]) -> list[list[TurnJob]]:
        """Split rows without arrays, so that a pass's own fit."""
        limit = self.headroom.limit_bytes
        if not limit or not self.store.by_arrays:
            return [list(jobs)]
        lanes, left = list[list[TurnJob]]([[]]), limit
        for job in jobs:
            assert job.kv is not None
            needed = self.store.pass_bytes(job.kv)
            if needed > left and lanes[-1]:
                lanes.append([])
                left = limit
            lanes[-1].append(job)
            left -= needed
        return lanes

    def _launch(self, jobs: list[TurnJob]) -> None:
        pieces, ids = [], []
        for job in jobs:
            assert job.kv is not None
            new = [] if job.token is not None else job.between(job.position, job.tokens)
            ids.append(job.token if job.token is not None else mx.array(new, dtype=mx.uint32))
            pieces.append(Piece(job.kv, max(1, len(new))))
        alone = len(pieces) == pieces[0].tokens == 1 and not self.store.by_arrays
        began = time.monotonic()
        self._make_room(pieces)
        of = Pass(pieces, rows=True if alone else None, ends=True)
        logits, written = self.store.compute(self.model, of, mx.concatenate(ids))
        tokens = next_tokens(logits, jobs)
        mx.async_eval(tokens, written.state)  # type: ignore[no-untyped-call]
        for at, job in enumerate(jobs):
            job.token = tokens[at : at + 1]
            if job in self._waiting:
                self._waiting.remove(job)
                self._running.append(job)
        self._flights.append(_Flight(jobs, tokens, written, [job.position for job in jobs], began))

    def _take_all(self, flights: Sequence[_Flight]) -> None:
        """Emitted at once: a turn's first, before a chunk, at the end."""
        soon = self.prompts > 0 or not self._flights or _has_first_tokens(flights)
        for flight in flights:
            guarded(partial(self._take, flight), partial(self._not_taken, flight))
        self.flush(soon=soon)

    def _take(self, flight: _Flight) -> None:
        tokens: list[int] = flight.tokens.tolist()  # type: ignore[assignment]
        flight.written.put()
        self.stepped("decode")
        for job, token, end in zip(flight.jobs, tokens, flight.ends, strict=True):
            if job not in self._running:
                continue
            if not job.prompted:
                guarded(partial(self._prompt_done, job, flight, end), partial(self._end, job))
                if job not in self._running:
                    continue
            job.filled = end
            if job.over:
                self._running.remove(job)
                self._finish(job)
            else:
                guarded(partial(job.take, token, self.tokenizer), partial(self._end, job))

    def _not_taken(self, flight: _Flight, error: Exception) -> None:
        """Its other jobs wait already: a later pass failed first."""
        self._failed([job for job in flight.jobs if job in self._running], error)

    def _prompt_done(self, job: TurnJob, flight: _Flight, end: int) -> None:
        began, tokens = job.filled, end - job.filled
        together = len(flight.jobs) > 1
        self._name(job.computed(Chunk(flight.began, time.monotonic(), began, tokens, alone=not together)))
        job.prefilled()

    def _end(self, job: TurnJob, error: Exception) -> None:
        self._running.remove(job)
        job.fail(error)

    def _grows(self, riders: Sequence[TurnJob]) -> bool:
        if not self.store.by_arrays:
            return False
        pieces = [Piece(job.kv, 1) for job in self._running if job.kv is not None]
        pieces += [Piece(job.kv, job.remaining) for job in riders if job.kv is not None]
        return self.store.growth(pieces) > 0

    def _make_room(self, pieces: Sequence[Piece]) -> None:
        grown = 0
        for piece in pieces if self.store.by_arrays else ():
            nbytes = self.store.growth([piece])
            if nbytes and not self.headroom.make(grown + nbytes):
                self.store.forgo_arrays(piece.sequence)
            else:
                grown += nbytes

    def _failed(self, jobs: Sequence[TurnJob], error: Exception) -> None:
        log.warning("a step of %d turns failed", len(jobs), exc_info=error)
        full = ran_out(error)
        error.__traceback__ = None  # Its frames hold arrays.
        after = [flight for flight in self._flights if not set(flight.jobs).isdisjoint(jobs)]
        self._flights = [flight for flight in self._flights if flight not in after]
        if full:
            self.headroom.recover()
        else:
            self.store.give_up_tracing(error)
            self.model.narrows = False
        for job in dict.fromkeys([*jobs, *(job for flight in after for job in flight.jobs)]):
            if job in self._running:
                self._running.remove(job)
            elif job in self._waiting:
                self._waiting.remove(job)
            else:
                continue
            if job.cancelled.is_set():
                guarded(job.cancel, job.fail)
            elif job.over:
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
