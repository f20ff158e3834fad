"""Continuous batching: one decode step for all running rows, then one chunk of one prompt, again and again.

Prompts (`prompts`) join the running rows when they are computed. So no stream waits for another turn's long prompt
longer than one chunk, and a new request waits for some layers of one. Decoding runs in mlx-lm's GenerationBatch over
our batch caches, in one batch, or in several where the rows' lengths differ so much that padding would cost more.
"""

import logging
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import mlx.core as mx

from inference_service.engine.caches.buffers import STEP
from inference_service.engine.caches.full import BatchQuantizedKVCache
from inference_service.engine.generation import TurnJob
from inference_service.engine.headroom import ran_out
from inference_service.engine.mlx_lm_adapter import GenerationBatch, begun, regrouped, trim
from inference_service.engine.prompts import PromptEngine, guarded
from inference_service.engine.sampling import processors
from inference_service.engine.scheduling import split
from inference_service.engine.speculation import Speculation, StepCosts, can_speculate
from inference_service.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)


@dataclass(eq=False, repr=False, kw_only=True)
class BatchEngine(PromptEngine):
    """Runs the turns of one model. Engine thread only: `add`, then `step` as long as it says that there is more.

    When a decode step raises, every row is built again from its tokens, in a group of its own, and only those that fail
    there are ended. `weight_bytes` is what one step reads of the model: see `scheduling`.
    """

    tokenizer: Tokenizer
    weight_bytes: int
    speculative: bool = False
    """Whether a row that decodes by itself may compute several tokens in a step, where that pays."""
    speculated: Callable[[int, int], object] = lambda _drafted, _accepted: None
    """Called, on the engine thread, for each step of a draft: its tokens, and how many of them were right."""
    _running: dict[int, TurnJob] = field(default_factory=dict, init=False)
    _groups: list[GenerationBatch] = field(default_factory=list, init=False)
    _rows_changed: bool = field(default=False, init=False)
    _next_uid: int = field(default=0, init=False)
    _step_costs: defaultdict[int, StepCosts] = field(default_factory=partial(defaultdict, StepCosts), init=False)
    """By the length of the context, in powers of 4: attention's share of a step grows with it."""

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
            self._waiting.append(job)

    def step(self) -> bool:
        """Decode one token of each row, or some of a row that speculates, and compute one chunk or as much of it as
        there is time for.

        Returns whether anything is left to do.
        """
        self._drop_cancelled()
        for group in list(self._groups):
            guarded(partial(self._decode, group), partial(self._rebuild, group))
        if self._waiting:
            self._advance()
        if self._rows_changed:
            self._rows_changed = False
            message = "rows could not be regrouped; they go on as they are"
            guarded(self._regroup, lambda error: log.warning(message, exc_info=error))
        if self._to_clear:  # The prompt's memory is free for its rows' new batch, and what that replaced is released.
            self._to_clear = False
            mx.clear_cache()
        if not (self._waiting or self._running):
            self._kept.clear()
        return bool(self._ready or self._running)

    def _drop_cancelled(self) -> None:
        self._drop_cancelled_prompts()
        for group in list(self._groups):
            gone = [uid for uid in group.uids if self._running[uid].cancelled.is_set()]
            for uid in gone:
                job = self._running[uid]
                if job.blocks.new(job.tokens):
                    guarded(partial(_extract, group, group.uids.index(uid), job), partial(_without_caches, job))
            guarded(partial(self._leave, group, gone, TurnJob.cancel), partial(self._rebuild, group))

    def _join(self, jobs: list[TurnJob], logits: mx.array, caches: list[Any]) -> None:
        self._to_clear = True
        changes, samplers = [], []
        for job in jobs:
            job.prefilled()
            assert job.decoding is not None
            changes.append(processors(job.decoding.sampling, len(job.sequence)))
            samplers.append(job.sampler)
        uids = list(range(self._next_uid, self._next_uid + len(jobs)))
        histories = [job.history for job in jobs]
        group, first = begun(uids, self.model, logits, caches, histories, samplers, changes)
        self._next_uid += len(jobs)
        self._groups.append(group)
        self._rows_changed = True
        errors: dict[TurnJob, Exception] = {}
        for uid, job, token in zip(uids, jobs, first, strict=True):
            self._waiting.remove(job)
            self._running[uid] = job
            job.first_taken = True
            guarded(partial(job.take, token, self.tokenizer), partial(errors.__setitem__, job))
        failed = [uid for uid in uids if self._running[uid] in errors]
        leave = partial(self._leave, group, failed, lambda job: job.fail(errors[job]))
        guarded(leave, partial(self._rebuild, group))

    def _regroup(self) -> None:
        """Bring the rows into the groups that cost least, but for those that are kept alone."""
        together = self.model.rows_together
        alone = [group for group in self._groups if not together or self._running[group.uids[0]].alone]
        shared = [group for group in self._groups if group not in alone]
        uids = [uid for group in shared for uid in group.uids]
        best = split([self._running[uid].tokens for uid in uids], self.token_bytes, self.weight_bytes)
        self._groups = alone + regrouped(shared, [frozenset(uids[row] for row in rows) for rows in best])

    def _decode(self, group: GenerationBatch) -> None:
        """One step for every row of a group; those that end, or whose token cannot be emitted, leave."""
        self._make_room(group)
        if group not in self._groups:
            return
        ended: list[int] = []
        errors: dict[TurnJob, Exception] = {}
        failed: list[int] = []
        sampled = self._sampled(group)
        self.stepped("decode")
        for uid, tokens in sampled:
            job = self._running[uid]
            if job.first_taken:
                job.first_taken = False
                del tokens[0]
            while tokens and not job.over and job not in errors:
                take = partial(job.take, tokens.pop(0), self.tokenizer)
                guarded(take, partial(errors.__setitem__, job))
            if job in errors:
                failed.append(uid)
            elif job.over:
                ended.append(uid)
                if tokens:  # Of a row that speculated, which is alone: what follows a stop string is in its caches.
                    trim(group, len(tokens))
        self._leave(group, failed, lambda job: job.fail(errors[job]))
        for uid in ended:
            job = self._running[uid]
            guarded(partial(_extract, group, group.uids.index(uid), job), partial(_without_caches, job))
        self._leave(group, ended, self._finish)

    def _make_room(self, group: GenerationBatch) -> None:
        """Where a group's buffers are about to grow and there is no memory for that, fail its longest rows until there
        is."""
        while (growth := _growth(group)) and not self.headroom.make(growth):
            longest = max(group.uids, key=lambda uid: self._running[uid].tokens)
            rows = len(group.uids)
            error = self.headroom.refusal(f"a batch of {rows} requests" if rows > 1 else "the request", growth)
            self._leave(group, [longest], partial(TurnJob.fail, error=error))
            if group not in self._groups:
                return

    def _sampled(self, group: GenerationBatch) -> list[tuple[int, list[int]]]:
        """One step of a group: each row's uid, and its token; several where it speculates."""
        jobs = [self._running[uid] for uid in group.uids]
        [job, *others] = jobs
        if others or not self._may_speculate(job, group):
            for each in jobs:
                each.speculation = None
            return [(response.uid, [response.token]) for response in group.next()]
        assert job.decoding is not None
        if job.speculation is None:
            job.speculation = Speculation(job.history, ahead=job.first_taken)
        left = job.decoding.max_tokens - len(job.result.token_ids) - (not job.first_taken)
        most = min(left, _room(group) - 1)  # Buffers grow for tokens that are certain.
        measure = not self._waiting and len(self._groups) == 1
        costs = self._step_costs[job.tokens.bit_length() // 2]
        step = job.speculation.step(group, most, self.tokenizer.eos_ids, costs, measure=measure)
        if step.drafted:
            self.speculated(step.drafted, step.accepted)
        return [(group.uids[0], step.tokens)]

    def _may_speculate(self, job: TurnJob, group: GenerationBatch) -> bool:
        """Whether a row that decodes by itself does. None with a seed: that asks for the same answer again, while how
        many tokens a step computes, and so how they are rounded, hangs on measured times.
        """
        assert job.decoding is not None
        seeded = job.decoding.sampling.seed is not None
        return self.speculative and not seeded and not job.alone and can_speculate(group)

    def _leave(self, group: GenerationBatch, uids: list[int], end: Callable[[TurnJob], None]) -> None:
        """End the turns of rows, and take these out of the batch.

        The turns end before the batch is touched, so that they are over even if that fails.
        """
        if not uids:
            return
        self._rows_changed = True
        keep = [row for row, uid in enumerate(group.uids) if uid not in uids]
        for uid in uids:
            end(self._running.pop(uid))
        if keep:
            group.filter(keep)
        else:
            self._groups.remove(group)

    def _rebuild(self, group: GenerationBatch, error: Exception) -> None:
        """A step failed: go on with every row from its tokens, each in a group of its own.

        A row that was alone is the one that fails.
        """
        log.warning("a step of %d rows failed", len(group.uids), exc_info=error)
        full = ran_out(error)
        error.__traceback__ = None  # Its frames hold arrays.
        if group in self._groups:
            self._groups.remove(group)
        uids = [uid for uid in group.uids if uid in self._running]
        if full:
            vars(group).clear()  # It holds the caches, and graphs that were not computed.
            self.headroom.recover()
        else:
            self.model.give_up_compiling(error)
        self._rows_changed = True
        for uid in uids:
            job = self._running.pop(uid)
            if job.cancelled.is_set():
                job.cancel()
            elif job.over:  # Its last token was the first; only KV of that one was to come.
                job.caches.clear()
                self._finish(job)
            elif job.alone:
                job.fail(self.headroom.explained(error))
            else:
                job.cramped = full
                job.restart(self.new_caches())
                self._waiting.append(job)


def _growth(group: GenerationBatch) -> int:
    """Bytes that the next step takes besides computing: where the buffers are full, they are copied to larger ones."""
    return 0 if _room(group) else sum(int(cache.nbytes) for cache in group.prompt_cache)


def _room(group: GenerationBatch) -> int:
    """Tokens of each row that the buffers have room for; as many as there may be of layers that keep a window only."""
    full = next((cache for cache in group.prompt_cache if isinstance(cache, BatchQuantizedKVCache)), None)
    return STEP if full is None else full.buffers.capacity - full.buffers.filled


def _extract(group: GenerationBatch, row: int, job: TurnJob) -> None:
    """Give a row its caches back, copied out of the batch.

    A row whose caches cannot be copied goes without them: its tokens are right, and its KV can be computed again.
    """
    job.caches[:] = group.extract_cache(row)
    mx.eval([cache.state for cache in job.caches])


def _without_caches(job: TurnJob, error: Exception) -> None:
    log.warning("a row's caches could not be copied; they will be computed again", exc_info=error)
    job.caches.clear()
