"""Continuous batching: one decode step for all running rows, then one chunk of one prompt, again and again.

Prompts are computed one sequence at a time, unpadded, or short ones that wait together in a batch, and join the running
rows when they are done. So no stream waits for another turn's long prompt longer than one chunk, and a new request
waits for some layers of one. Decoding runs in mlx-lm's GenerationBatch over our batch caches, in one batch, or in
several where the rows' lengths differ so much that padding would cost more.

A prompt's first token comes from the logits of its last chunk, if that is short, as a next turn's is: feeding the last
token by a step of its own took 7 to 12 % of a next turn's time to first token. A hybrid model's raw prompts still end
in a chunk of one, because a checkpoint is kept in front of their last token.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import mlx.core as mx

from inference_service.engine.batched_prefill import PromptBatch, batchable, companions, most_tokens
from inference_service.engine.caches.buffers import STEP
from inference_service.engine.caches.full import BatchQuantizedKVCache
from inference_service.engine.generation import Chunk, TurnJob
from inference_service.engine.geometry import Caches, merged
from inference_service.engine.headroom import Headroom, ran_out
from inference_service.engine.mlx_lm_adapter import GenerationBatch, begun, regrouped, trim
from inference_service.engine.prefill import PrefillChunk, next_stop
from inference_service.engine.sampling import processors
from inference_service.engine.scheduling import (
    SECONDS_ALONE,
    SECONDS_OF_A_LAYER,
    SECONDS_WHILE_OTHERS_DECODE,
    SMALLEST_CHUNK,
    Waiting,
    chunk_tokens,
    next_prompt,
    split,
)
from inference_service.engine.speculation import Speculation, StepCosts, can_speculate
from inference_service.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

_SHORT = 64
"""Tokens of a chunk whose logits are computed, all of them, because models give no others: 33 MB for Gemma 3."""


@dataclass(eq=False, repr=False)
class BatchEngine:
    """Runs the turns of one model. Engine thread only: `add`, then `step` as long as it says that there is more.

    A turn's error is its own: whatever a prompt raises ends that turn, and when a decode step raises, every row is
    built again from its tokens, in a group of its own, and only those that fail there are ended. A prompt for which an
    allocation failed is begun again once, too.

    `token_bytes` is KV per token of the full-attention layers, `weight_bytes` what one step reads of the model: see
    `scheduling`. `others_decode` returns whether other models' turns generate, which wait for this one's chunks, too.
    """

    model: Any
    tokenizer: Tokenizer
    new_caches: Callable[[], Caches]
    token_bytes: int
    weight_bytes: int
    others_decode: Callable[[], bool] = lambda: False
    asked: Callable[[], bool] = lambda: False
    """Whether something waits for the engine's thread: then a step stops between two layers of a chunk."""
    stepped: Callable[[str], object] = lambda _: None
    """Called, on the engine thread, for each chunk of a prompt ("prefill") and each step of a batch ("decode")."""
    headroom: Headroom = field(default_factory=Headroom)
    """What is free on the device: looked at before KV is restored, before a chunk, and before a batch grows."""
    speculative: bool = False
    """Whether a row that decodes by itself may compute several tokens in a step, where that pays."""
    speculated: Callable[[int, int], object] = lambda _drafted, _accepted: None
    """Called, on the engine thread, for each step of a draft: its tokens, and how many of them were right."""
    _waiting: list[TurnJob] = field(default_factory=list, init=False)
    _batch: PromptBatch | None = field(default=None, init=False)
    """Prompts that are computed together; their turns wait."""
    _running: dict[int, TurnJob] = field(default_factory=dict, init=False)
    _groups: list[GenerationBatch] = field(default_factory=list, init=False)
    _rows_changed: bool = field(default=False, init=False)
    _to_clear: bool = field(default=False, init=False)
    _next_uid: int = field(default=0, init=False)
    _tokens_per_second: float = field(default=0.0, init=False)
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
            self._guarded(partial(self._decode, group), partial(self._rebuild, group))
        if self._waiting:
            self._advance()
        if self._rows_changed:
            self._rows_changed = False
            message = "rows could not be regrouped; they go on as they are"
            self._guarded(self._regroup, lambda error: log.warning(message, exc_info=error))
        if self._to_clear:  # The prompt's memory is free for its rows' new batch, and what that replaced is released.
            self._to_clear = False
            mx.clear_cache()
        return bool(self._waiting or self._running)

    def _drop_cancelled(self) -> None:
        for job in [job for job in self._waiting if job.cancelled.is_set()]:
            self._waiting.remove(job)
            job.cancel()
        if not any(job in self._waiting for job in self._together):
            self._batch = None
        for group in list(self._groups):
            gone = [uid for uid in group.uids if self._running[uid].cancelled.is_set()]
            self._guarded(partial(self._leave, group, gone, TurnJob.cancel), partial(self._rebuild, group))

    def _advance(self) -> None:
        """Compute one chunk of the prompt that has the least left to do, or go on with its chunk; with it others that
        are as short.
        """
        states = [Waiting(job.remaining, job.waited_steps) for job in self._waiting]
        job = self._waiting[next_prompt(states)]
        under_way = job.chunk is not None or job in self._together
        if self._batch is None and len(jobs := self._companions(job)) > 1:
            self._guarded(partial(self._begin_together, jobs), partial(self._part, jobs))
        together = self._together if job in self._together else [job]
        if not under_way:  # Stops are many where much arrives; chunks are what a prompt waits for.
            for other in self._waiting:
                other.waited_steps = 0 if other in together else other.waited_steps + 1
        if self._batch is not None and job in self._together:
            self._guarded(partial(self._prefill_together, self._batch), partial(self._part, self._together))
            return

        def fail(error: Exception) -> None:
            if ran_out(error) and job in self._waiting and not job.cramped:
                self._begin_again(job, error)
                return
            if job in self._waiting:
                self._waiting.remove(job)
            job.fail(self.headroom.explained(error))

        self._guarded(lambda: self._prefill(job), fail)

    def _begin_again(self, job: TurnJob, error: Exception) -> None:
        """There was no memory: let go what can be, and have the turn go on from its tokens."""
        log.warning("no memory for a chunk of a prompt, which is begun again: %s", error)
        error.__traceback__ = None  # Its frames hold arrays.
        job.cramped = True
        job.restart(self.new_caches())
        self.headroom.recover()

    @property
    def _together(self) -> list[TurnJob]:
        """The turns whose prompts are computed together."""
        return self._batch.jobs if self._batch is not None else []

    def _companions(self, job: TurnJob) -> list[TurnJob]:
        """The turns whose prompts may be computed with a turn's, itself included."""
        if not (self.model.prompts_together and batchable(job)):
            return [job]
        fresh = [each for each in self._waiting if batchable(each)]
        if len(fresh) == 1:
            return fresh
        most = min(most_tokens(), chunk_tokens(0, self._tokens_per_second, self._seconds(self.new_caches())))
        return [fresh[row] for row in companions([each.tokens for each in fresh], fresh.index(job), most)]

    def _begin_together(self, jobs: Sequence[TurnJob]) -> None:
        """Begin prompts that are computed together, if there is memory for that."""
        if not self.headroom.fits(0, len(jobs) * max(job.tokens for job in jobs)):
            return
        for job in jobs:
            job.start()
        self._batch = PromptBatch.begun(self.model, jobs, self.new_caches, self._tokens_per_second)

    def _prefill_together(self, batch: PromptBatch) -> None:
        """Go on with prompts that are computed together; once they are done, they decode together."""
        if not self._go_on(batch.chunk, lambda: all(job.cancelled.is_set() for job in batch.jobs)):
            return
        batch.keep([row for row, job in enumerate(batch.jobs) if job in self._waiting])
        chunk = batch.chunk
        for job in batch.jobs:
            job.computed(Chunk(chunk.began, time.monotonic(), 0, job.tokens - 1))
        self._join(batch.jobs, batch.logits(self.model), batch.caches)
        self._batch = None

    def _part(self, jobs: Sequence[TurnJob], error: Exception) -> None:
        """Prompts could not be computed together: each goes on from its tokens, by itself."""
        log.warning("%d prompts are computed one by one: %s", len(jobs), error)
        error.__traceback__ = None  # Its frames hold arrays.
        if self._batch is not None:
            vars(self._batch).clear()  # It holds the caches, and a graph that was not computed.
            self._batch = None
        for job in jobs:
            if job in self._waiting:
                job.alone, job.cramped = True, ran_out(error)
                if job.started:
                    job.restart(self.new_caches())
        if ran_out(error):
            self.headroom.recover()

    def _prefill(self, job: TurnJob) -> None:
        if not job.started:
            missing = max(0, job.reused - job.allocated)
            self.headroom.require(missing * self.token_bytes, f"KV of {missing} tokens")
            job.start()
        if not self._compute(job):
            return
        if job.decoding and job.remaining == 1 and not self._compute(job):
            return  # It was stopped: a token alone is computed in the same step as the chunk before it.
        if job.remaining:
            return
        if job.decoding:
            assert job.logits is not None
            logits, job.logits = job.logits, None
            batched = merged(job.caches)
            job.caches.clear()  # A batch makes its first step at once, and a write to shared arrays copies them all.
            self._join([job], logits, batched)
        else:
            self._to_clear = True
            job.prefilled()
            self._waiting.remove(job)
            self._finish(job)

    def _compute(self, job: TurnJob) -> bool:
        """Begin the next chunk of what is left, or go on with the one under way; whether that is complete."""
        if job.chunk is None and job.remaining:
            job.chunk = self._next_chunk(job)
        chunk = job.chunk
        if chunk is None:
            return True
        if not self._go_on(chunk, job.cancelled.is_set):
            return False
        job.chunk, job.logits = None, chunk.logits
        job.computed(Chunk(chunk.began, time.monotonic(), chunk.position, chunk.tokens))
        return True

    def _seconds(self, caches: Caches) -> float:
        """How long a chunk may take."""
        alone = max(SECONDS_ALONE, SECONDS_OF_A_LAYER * len(caches))
        return SECONDS_WHILE_OTHERS_DECODE if self._others_wait() else alone

    def _next_chunk(self, job: TurnJob) -> PrefillChunk:
        tokens, position = job.tokens, job.position
        speed = self._tokens_per_second
        most = SMALLEST_CHUNK if job.cramped else chunk_tokens(position, speed, self._seconds(job.caches))
        end = position + self.headroom.chunk(position, min(most, tokens - position))
        whole = job.decoding is None or tokens - position <= _SHORT
        # A longer one leaves the last token for a chunk of one, because that is the one whose logits are wanted.
        last = tokens if whole else tokens - 1
        chunk = job.between(position, next_stop(job.caches, job.checkpoints, min(end, last)))
        wants_logits = job.decoding is not None and position + len(chunk) == tokens
        return PrefillChunk(self.model, job.caches, [chunk], position, speed, wants_logits=wants_logits)

    def _go_on(self, chunk: PrefillChunk, cancelled: Callable[[], bool]) -> bool:
        """Compute the chunk until something else is to be done first; whether it is complete."""
        began = time.monotonic()

        def stop() -> bool:
            too_long = time.monotonic() - began >= SECONDS_WHILE_OTHERS_DECODE and self._others_wait()
            return too_long or self.asked() or cancelled()

        if not chunk.advance(stop):
            return False
        if chunk.tokens >= 128:
            self._tokens_per_second = chunk.tokens / max(chunk.seconds, 1e-6)
        self.stepped("prefill")
        return True

    def _others_wait(self) -> bool:
        return bool(self._running) or self.others_decode()

    def _join(self, jobs: Sequence[TurnJob], logits: mx.array, caches: list[Any]) -> None:
        """Have turns decode whose prompts are computed: `logits` [rows, 1, vocabulary] are those behind their last
        tokens, and batch caches hold these.
        """
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
            self._guarded(partial(job.take, token, self.tokenizer), partial(errors.__setitem__, job))
        failed = [uid for uid in uids if self._running[uid] in errors]
        leave = partial(self._leave, group, failed, lambda job: job.fail(errors[job]))
        self._guarded(leave, partial(self._rebuild, group))

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
                self._guarded(take, partial(errors.__setitem__, job))
            if job in errors:
                failed.append(uid)
            elif job.over:
                ended.append(uid)
                if tokens:  # Of a row that speculated, which is alone: what follows a stop string is in its caches.
                    trim(group, len(tokens))
        self._leave(group, failed, lambda job: job.fail(errors[job]))
        for uid in ended:
            job = self._running[uid]
            self._guarded(partial(_extract, group, group.uids.index(uid), job), partial(_without_caches, job))
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

    def _finish(self, job: TurnJob) -> None:
        self._guarded(job.finish, job.fail)

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

    def _guarded(self, work: Callable[[], object], failed: Callable[[Exception], object]) -> None:
        """Have a turn's fault end that turn, and not the thread with all turns."""
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the rim of a turn: it, and only it, gets the error
            failed(error)


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
