"""The half of the batch engine that computes prompts; `batching` is the other half, which decodes.

Prompts are computed in chunks, one sequence at a time, unpadded, or short ones that wait together in a batch; then
their turns decode. The one that has the least left to do comes first.

A prompt's first token comes from the logits of its last chunk, if that is short, as a next turn's is: feeding the last
token by a step of its own took 7 to 12 % of a next turn's time to first token. A hybrid model's raw prompts still end
in a chunk of one, because a checkpoint is kept in front of their last token.
"""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import mlx.core as mx

from agentmem.kv.blockfile import BLOCK_TOKENS
from inference_service.engine.batched_prefill import Prompt, PromptBatch, batchable, companions, most_tokens
from inference_service.engine.device import on_cpu
from inference_service.engine.generation import Chunk, TurnJob
from inference_service.engine.geometry import Caches, merged
from inference_service.engine.headroom import Headroom, ran_out
from inference_service.engine.prefill import PrefillChunk, next_stop
from inference_service.engine.scheduling import (
    SECONDS_ALONE,
    SECONDS_OF_A_LAYER,
    SECONDS_WHILE_OTHERS_DECODE,
    SMALLEST_CHUNK,
    Waiting,
    chunk_tokens,
    next_prompt,
)

log = logging.getLogger(__name__)

_LONG_CHUNK: Final = 1_024
"""Tokens of a last chunk whose blocks are copied before the first token. Of a shorter one that is a larger share of its
time: 3 % of 2,048 tokens, 6 to 15 % of 600 (H200, Llama 3.1 8B; measured once, no benchmark has it)."""

_NAMES: Final = 4096
"""Blocks of prompts, a million tokens, that turns which wait may look for again."""

_SHORT: Final = 64
"""Tokens of a chunk whose logits are computed, all of them, because models give no others: 33 MB for Gemma 3."""


@dataclass(eq=False, repr=False, kw_only=True)
class PromptEngine(ABC):
    """Computes the prompts of turns that wait. Engine thread only.

    A turn's error is its own: whatever a prompt raises ends that turn. A prompt for which an allocation failed is begun
    again once.

    `token_bytes` is KV per token of the full-attention layers. `others_decode` returns whether other models' turns
    generate, which wait for this one's chunks, too.
    """

    model: Any
    new_caches: Callable[[], Caches]
    token_bytes: int
    others_decode: Callable[[], bool] = lambda: False
    asked: Callable[[], bool] = lambda: False
    """Whether something waits for the engine's thread: then a step stops between two layers of a chunk."""
    stepped: Callable[[str], object] = lambda _: None
    """Called, on the engine thread, for each chunk of a prompt ("prefill") and each step of a batch ("decode")."""
    headroom: Headroom = field(default_factory=Headroom)
    """What is free on the device: looked at before KV is restored, before a chunk, and before a batch grows."""
    _waiting: list[TurnJob] = field(default_factory=list, init=False)
    _batch: PromptBatch | None = field(default=None, init=False)
    """Prompts that are computed together; their turns wait."""
    _to_clear: bool = field(default=False, init=False)
    """Whether memory of a prompt that is done is to be given back once its rows are regrouped."""
    _tokens_per_second: float = field(default=0.0, init=False)
    _kept: dict[bytes, None] = field(default_factory=dict, init=False)
    """Names of blocks of prompts that went into the pool since the engine was idle, the last ones."""

    @property
    @abstractmethod
    def running(self) -> int:
        """Turns that generate."""

    @abstractmethod
    def _join(self, jobs: list[TurnJob], logits: mx.array, caches: list[Any]) -> None:
        """Have turns that wait decode, now that their prompts are computed: `logits` [rows, 1, vocabulary] are those
        behind their last tokens, and batch caches hold these.
        """

    def _finish(self, job: TurnJob) -> None:
        guarded(job.finish, job.fail)

    def _drop_cancelled_prompts(self) -> None:
        for job in [job for job in self._waiting if job.cancelled.is_set()]:
            self._waiting.remove(job)
            job.cancel()
        if not any(job in self._waiting for job in self._together):
            self._batch = None

    def _advance(self) -> None:
        """Compute one chunk of the prompt that has the least left to do, or go on with its chunk; with it others that
        are as short.
        """
        if (job := self._next()) is None:
            return
        under_way = job.chunk is not None or job in self._together
        if self._batch is None and len(jobs := self._companions(job)) > 1:
            guarded(partial(self._begin_together, jobs), partial(self._part, jobs))
        together = self._together if job in self._together else [job]
        if not under_way:  # Stops are many where much arrives; chunks are what a prompt waits for.
            for other in self._waiting:
                other.waited_steps = 0 if other in together else other.waited_steps + 1
        if job not in self._waiting:  # It could not be started.
            return
        if self._batch is not None and job in self._together:
            guarded(partial(self._prefill_together, self._batch), partial(self._part, self._together))
            return
        guarded(partial(self._prefill, job), partial(self._fail, job))

    @property
    def _ready(self) -> list[TurnJob]:
        """The turns that wait, without those whose pool is being looked through."""
        return [job for job in self._waiting if not job.blocks.looking]

    def _next(self) -> TurnJob | None:
        """Return whose prompt is next. None where it may find more in the pool than it did: it looks first.

        A prompt that would begin with a block that another is about to compute lets that one go on, which takes it no
        time: each block is computed once, and found by all.
        """
        if not (ready := self._ready):
            return None
        job = ready[next_prompt([Waiting(each.remaining, each.waited_steps) for each in ready])]
        name = job.next_block
        if job.started or not name:
            return job
        if ahead := next((each for each in ready if each.started and each.next_block == name), None):
            return ahead
        return None if name in self._kept and job.blocks.look_for(name) else job

    def _fail(self, job: TurnJob, error: Exception) -> None:
        """A prompt's own error, or that it could not be started: for want of memory it is begun again once."""
        if ran_out(error) and job in self._waiting and not job.cramped:
            self._begin_again(job, error)
            return
        if job in self._waiting:
            self._waiting.remove(job)
        job.fail(self.headroom.explained(error))

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
        others = [each for each in self._ready if batchable(each) and each.next_block not in self._kept]
        fresh = _apart([job, *(each for each in others if each is not job)])
        if len(fresh) == 1:
            return fresh
        position, seconds = max(each.position for each in fresh), self._seconds(self.new_caches())
        most = min(most_tokens(), chunk_tokens(position, self._tokens_per_second, seconds))
        waiting = [Prompt(each.position, each.remaining) for each in fresh]
        return [fresh[row] for row in companions(waiting, fresh.index(job), most)]

    def _begin_together(self, jobs: Sequence[TurnJob]) -> None:
        """Begin prompts that are computed together, if there is memory for that which the pool need not give up.

        One that cannot be started is none of the others' business.
        """
        context, rows = max(job.position for job in jobs), len(jobs)
        restored = sum(max(0, job.reused - job.allocated) for job in jobs)
        copied = 2 * rows * max(job.tokens for job in jobs) if context else 0  # Once more where the copies grow.
        tokens = rows * max(job.remaining for job in jobs)
        chunk = self.headroom.needed(context, tokens)
        within = self.headroom.within_limit(context, tokens)
        if not within or not self.headroom.spare((restored + copied) * self.token_bytes + chunk):
            return
        for job in jobs:
            guarded(job.start, partial(self._fail, job))
        begun = [job for job in jobs if job.started]
        if len(begun) > 1:
            self._batch = PromptBatch.begun(self.model, begun, self.new_caches, self._tokens_per_second)

    def _prefill_together(self, batch: PromptBatch) -> None:
        """Go on with prompts that are computed together; once they are done, they decode together."""
        cold = not any(batch.contexts)  # Other chunks do not copy and attend over many contexts.
        if not self._go_on(batch.chunk, lambda: all(job.cancelled.is_set() for job in batch.jobs), learns=cold):
            return
        batch.keep([row for row, job in enumerate(batch.jobs) if job in self._waiting])
        chunk = batch.chunk
        for job, context in zip(batch.jobs, batch.contexts, strict=True):
            job.computed(Chunk(chunk.began, time.monotonic(), context, job.tokens - 1 - context, alone=False))
        self._join(batch.jobs, batch.logits(self.model), batch.caches)
        self._batch = None

    def _part(self, jobs: Sequence[TurnJob], error: Exception) -> None:
        """Prompts could not be computed together: each goes on by itself, from its KV where it still has that."""
        log.warning("%d prompts are computed one by one: %s", len(jobs), error)
        error.__traceback__ = None  # Its frames hold arrays.
        if self._batch is not None:
            vars(self._batch).clear()  # It holds the caches, and a graph that was not computed.
            self._batch = None
        for job in jobs:
            if job in self._waiting:
                job.alone, job.cramped = True, ran_out(error)
                if job.started and not job.caches:
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
        computed = Chunk(chunk.began, time.monotonic(), chunk.position, chunk.tokens)
        for name in job.computed(computed, keeps_blocks=self._keeps_blocks(job, chunk.tokens)):
            self._kept[name] = None
        while len(self._kept) > _NAMES:  # An engine that has always work is never idle.
            del self._kept[next(iter(self._kept))]
        return True

    def _keeps_blocks(self, job: TurnJob, chunk_tokens: int) -> bool:
        """Return whether blocks go to the pool after a chunk of a prompt.

        Copying takes a twentieth of the time of a long chunk, and more of a short one; after the last chunk the first
        token waits for it. So then it is done where another prompt waits for a block, or the chunk took long.
        """
        if job.remaining > 1 or chunk_tokens >= (SMALLEST_CHUNK if on_cpu() else _LONG_CHUNK):
            return True
        names = job.blocks.new(job.position)
        return any(each.next_block in names for each in self._waiting if not each.started)

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
        stops = {*job.checkpoints, last // BLOCK_TOKENS * BLOCK_TOKENS} if job.resumable else job.checkpoints
        chunk = job.between(position, next_stop(job.caches, stops, min(end, last)))
        wants_logits = job.decoding is not None and position + len(chunk) == tokens
        return PrefillChunk(self.model, job.caches, [chunk], position, speed, wants_logits=wants_logits)

    def _go_on(self, chunk: PrefillChunk, cancelled: Callable[[], bool], *, learns: bool = True) -> bool:
        """Compute the chunk until something else is to be done first; whether it is complete. From one of many tokens
        the engine `learns` how long chunks take.
        """
        began = time.monotonic()

        def stop() -> bool:
            too_long = time.monotonic() - began >= SECONDS_WHILE_OTHERS_DECODE and self._others_wait()
            return too_long or self.asked() or cancelled()

        if not chunk.advance(stop):
            return False
        if learns and chunk.tokens >= 128:
            self._tokens_per_second = chunk.tokens / max(chunk.seconds, 1e-6)
        self.stepped("prefill")
        return True

    def _others_wait(self) -> bool:
        return self.running > 0 or self.others_decode()


def _apart(jobs: Sequence[TurnJob]) -> list[TurnJob]:
    """Return those that are to compute no block that one before computes: they find it afterwards."""
    names: set[bytes] = set()
    kept = []
    for job in jobs:
        if not job.next_block or job.next_block not in names:
            kept.append(job)
        names.add(job.next_block)
    return kept


def guarded(work: Callable[[], object], failed: Callable[[Exception], object]) -> None:
    """Have a turn's fault end that turn, and not the thread with all turns."""
    try:
        work()
    except Exception as error:  # noqa: BLE001 - the rim of a turn: it, and only it, gets the error
        failed(error)
