"""Continuous batching: one pass for all running rows and short prompts, then a chunk of a long prompt, again and again.

A row is a token with its own position, wherever its sequence's blocks lie, so turns join and leave without a copy. A
short prompt rides along as rows of its own: it shares one read of the weights with decoding turns, and its first token
comes with the pass. The next pass is launched before the tokens of the previous one are read.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import mlx.core as mx

from agentmem.errors import ResourceExhausted
from inference_service.engine.choosing import next_tokens
from inference_service.engine.device import on_cpu
from inference_service.engine.drafting import Drafter
from inference_service.engine.generation import Chunk, TurnJob
from inference_service.engine.headroom import ran_out
from inference_service.engine.paged.passes import Pass, Piece
from inference_service.engine.paged.sequence import SLACK
from inference_service.engine.paged.writing import Written
from inference_service.engine.prompts import PromptEngine, guarded
from inference_service.engine.speculation import StepCosts, sampled_along
from inference_service.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)


class _Flight(NamedTuple):
    """A launched pass: its jobs in the order of its pieces, their next tokens [jobs], and the KV to put into blocks.
    `began` is the start time of prompts in it.
    """

    jobs: list[TurnJob]
    tokens: mx.array
    written: Written
    ends: list[int]
    """Tokens of each job whose KV is present once the pass is computed."""
    began: float


@dataclass(eq=False, repr=False, kw_only=True)
class BatchEngine(PromptEngine):
    """Runs the turns of one model. Engine thread only: `add`, then `step` while it returns True.

    When a pass raises, each of its turns restarts from its initial KV in passes of its own; only turns that fail there
    end.
    """

    tokenizer: Tokenizer
    speculative: bool = False
    """A sequence that decodes alone may compute several tokens in a step, where that pays."""
    speculated: Callable[[int, int], object] = lambda _drafted, _accepted: None
    """Called on the engine thread after each drafted step, with the numbers of drafted and accepted tokens."""
    _step_costs: defaultdict[int, StepCosts] = field(default_factory=partial(defaultdict, StepCosts), init=False)
    """By context length in powers of 4: attention's share of a step grows with it."""
    _plain_since: float = field(default=0.0, init=False)
    """End of the last step if it took one token of one turn, else 0."""
    _running: list[TurnJob] = field(default_factory=list, init=False)
    _flights: list[_Flight] = field(default_factory=list, init=False)

    @property
    def running(self) -> int:
        """Turns that generate."""
        return len(self._running)

    def close(self) -> None:
        """Release the model. No turn may run or wait."""
        self.model = None

    def add(self, job: TurnJob) -> None:
        """Queue a turn, unless its future was cancelled."""
        if job.future.set_running_or_notify_cancel():
            job.capture, job.drop = self.store.checkpoints.capture, self.store.checkpoints.drop
            self._waiting.append(job)

    def step(self) -> bool:
        """Launch one pass, compute a chunk of a long prompt or the part of it that time allows, and take the previous
        pass's tokens.

        Returns whether anything is left to do.
        """
        self._drop_cancelled()
        before, self._flights = self._flights, []
        if self.store.by_arrays and not all(job.kv is not None and job.kv.arrays for job in self._running):
            self._take_all(before)  # Arrays dequantized for each pass need all tokens in the blocks.
            before = []
        riders = self._riders()
        drafted = None
        if not riders and (job := self._speculating()) is not None and self._would_draft(job):
            self._take_all(before)  # A draft needs the last sampled token.
            before, drafted = [], job
            guarded(partial(self._speculate, job), partial(self._failed, [job]))
        for lane in self._lanes(riders):
            if lane == [drafted] and not (lane[0].over or lane[0].alone) and self._would_draft(lane[0]):
                continue  # A plain step would delay the next draft, which yields this token, too.
            guarded(partial(self._launch, lane), partial(self._failed, lane))
        self._take_all(before)
        if (job := self._next()) is not None:
            # A first token does not wait for another prompt's chunk. A CPU computes them one after the other: a chunk's
            # time would begin with the pass, which may take most of it.
            if on_cpu() or any(not other.prompted for flight in self._flights for other in flight.jobs):
                before, self._flights = self._flights, []
                self._take_all(before)
            self._advance(job)
        if self._to_clear:
            self._to_clear = False
            mx.clear_cache()
        return bool(self._ready or self._running or self._flights)

    def _drop_cancelled(self) -> None:
        self._drop_cancelled_prompts()
        for job in [job for job in self._running if job.cancelled.is_set()]:
            self._running.remove(job)
            guarded(job.cancel, job.fail)

    def _speculating(self) -> TurnJob | None:
        """Return the turn that decodes alone, if it may compute several tokens in a step.

        A turn with a seed may not: it asks for the same answer again, but the tokens per step, and so rounding, depend
        on measured times. Recurrent states cannot be trimmed.
        """
        job = self._running[0] if len(self._running) == 1 else None
        if job is None or not (self.speculative and job.prompted) or job.over:
            for each in self._running:
                each.drafter = None
            return None
        assert job.decoding is not None
        seeded = job.decoding.sampling.seed is not None
        return None if seeded or job.alone or self.store.geometry.states is not None else job

    def _would_draft(self, job: TurnJob) -> bool:
        """Return whether the tokens taken so far give a draft."""
        job.drafter = job.drafter or Drafter(job.history)
        while job.drafter.tokens < job.tokens:
            job.drafter.add(job.between(job.drafter.tokens, job.drafter.tokens + 1)[0])
        return bool(self._draft(job))

    def _draft(self, job: TurnJob) -> list[int]:
        assert job.drafter is not None
        assert job.decoding is not None
        left = job.decoding.max_tokens - len(job.result.token_ids) - 1
        costs = self._step_costs[job.tokens.bit_length() // 2]
        return job.drafter.draft(min(left, SLACK), self.tokenizer.eos_ids, costs.of)

    def _speculate(self, job: TurnJob) -> None:
        """Compute one step of a turn whose tokens are all taken: its last token, and a draft if there still is one."""
        if job not in self._running or job.over or not self._would_draft(job) or not (draft := self._draft(job)):
            return
        assert job.kv is not None
        began, job.token, self._plain_since = time.perf_counter(), None, 0.0
        of = Pass([Piece(job.kv, 1 + len(draft))])
        self._make_room(of)
        ids = [*job.between(job.tokens - 1, job.tokens), *draft]
        logits, written = self.store.compute(self.model, of, mx.array(ids, dtype=mx.uint32))
        found = sampled_along(logits[0], job, draft)
        mx.eval(written.state)
        written.put()
        self.stepped("decode")
        costs = self._step_costs[job.tokens.bit_length() // 2]
        if not self._waiting:
            costs.took(len(ids), time.perf_counter() - began)
        self.speculated(len(draft), len(found) - 1)
        job.kv.trim(job.kv.length - (len(draft) + 1 - len(found)))
        job.filled = job.kv.length
        for token in found:
            if not job.over:
                guarded(partial(job.take, token, self.tokenizer), partial(self._end, job))
        if job.over and job.kv is not None and job.kv.length >= job.tokens:
            self._running.remove(job)
            self._finish(job)

    def _lanes(self, riders: Sequence[TurnJob]) -> list[list[TurnJob]]:
        """Return the jobs of each pass: one pass for all that may share it, one for each other job.

        A turn that is over still needs the KV of its last token, unless that is pending.
        """
        jobs = [*(job for job in self._running if not job.over or job.position < job.tokens), *riders]
        together = [job for job in jobs if self.model.rows_together and not job.alone]
        return [lane for lane in (together, *([job] for job in jobs if job not in together)) if lane]

    def _launch(self, jobs: list[TurnJob]) -> None:
        """Launch a pass over each decoding job's last sampled token and the rest of each prompt."""
        pieces, ids = [], []
        for job in jobs:
            assert job.kv is not None
            new = [] if job.token is not None else job.between(job.position, job.tokens)
            ids.append(job.token if job.token is not None else mx.array(new, dtype=mx.uint32))
            pieces.append(Piece(job.kv, max(1, len(new))))
        of = Pass(pieces, rows=True if len(pieces) == pieces[0].tokens == 1 and not self.store.by_arrays else None)
        began = time.monotonic()
        self._make_room(of)
        logits, written = self.store.compute(self.model, of, mx.concatenate(ids))
        last = [end - 1 for _, _, end, _ in of.spans()]
        rows = logits[:, 0] if of.rows else logits[0]
        rows = rows if len(last) == of.tokens else rows[mx.array(last)]
        tokens = next_tokens(rows, jobs)
        mx.async_eval(tokens, written.state)  # type: ignore[no-untyped-call]
        for at, job in enumerate(jobs):
            job.token = tokens[at : at + 1]
            if job in self._waiting:
                self._waiting.remove(job)
                self._running.append(job)
        self._flights.append(_Flight(jobs, tokens, written, [job.position for job in jobs], began))

    def _take_all(self, flights: Sequence[_Flight]) -> None:
        for flight in flights:
            guarded(partial(self._take, flight), partial(self._not_taken, flight))
        self.flush()

    def _take(self, flight: _Flight) -> None:
        """Take a pass's tokens, waiting for them, and end the turns that are over."""
        tokens: list[int] = flight.tokens.tolist()  # type: ignore[assignment]
        flight.written.put()
        self._note_time(flight)
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
        """Fail the running jobs of a pass. Its other jobs wait to go on alone: a later pass failed first."""
        self._failed([job for job in flight.jobs if job in self._running], error)

    def _note_time(self, flight: _Flight) -> None:
        """Record the time of a one-token step that follows another, with nothing else computed."""
        now, [job, *others] = time.perf_counter(), flight.jobs
        plain = not others and job.prompted and not self._waiting
        if plain and self._plain_since and job.drafter is not None:
            self._step_costs[job.tokens.bit_length() // 2].took(1, now - self._plain_since)
        self._plain_since = now if plain else 0.0

    def _prompt_done(self, job: TurnJob, flight: _Flight, end: int) -> None:
        """Record that a pass computed the last of a prompt."""
        began, tokens = job.filled, end - job.filled
        together = len(flight.jobs) > 1
        self._name(job.computed(Chunk(flight.began, time.monotonic(), began, tokens, alone=not together)))
        job.prefilled()

    def _end(self, job: TurnJob, error: Exception) -> None:
        self._running.remove(job)
        job.fail(error)

    def _make_room(self, of: Pass) -> None:
        """Raise ResourceExhausted if there is no memory for the arrays that a pass grows."""
        self.headroom.require(self.store.growth(of), f"a step of {len(of.pieces)} requests")

    def _failed(self, jobs: Sequence[TurnJob], error: Exception) -> None:
        """Continue each turn of a failed pass alone. A turn that was alone already fails."""
        log.warning("a step of %d turns failed", len(jobs), exc_info=error)
        full = ran_out(error) or isinstance(error, ResourceExhausted)
        error.__traceback__ = None  # Its frames hold arrays.
        after = [flight for flight in self._flights if not set(flight.jobs).isdisjoint(jobs)]
        self._flights = [flight for flight in self._flights if flight not in after]
        if full:
            self.headroom.recover()
        else:
            self.store.give_up_tracing(error)
        for job in dict.fromkeys([*jobs, *(job for flight in after for job in flight.jobs)]):
            if job in self._running:
                self._running.remove(job)
            elif job in self._waiting:
                self._waiting.remove(job)
            else:
                continue
            if job.cancelled.is_set():
                guarded(job.cancel, job.fail)
            elif job.over:  # Only the KV of its last token was pending.
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
