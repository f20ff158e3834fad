"""Prompt half of the batch engine: chunks of one sequence at a time; short prompts ride along in a decoding pass."""

import logging
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import mlx.core as mx

from agentmem.kv.blockfile import BLOCK_TOKENS
from inference_service.engine.device import on_cpu, on_cuda, on_metal
from inference_service.engine.gathering import Gathering
from inference_service.engine.generation import Chunk, TurnJob
from inference_service.engine.headroom import Headroom, ran_out
from inference_service.engine.lost_device import end_if_lost
from inference_service.engine.paged.passes import Pass, Piece
from inference_service.engine.paged.store import KVStore
from inference_service.engine.paged.writing import Written
from inference_service.engine.prefill import PrefillChunk, next_stop
from inference_service.engine.scheduling import (
    FEWEST_TOKENS,
    SECONDS_ALONE,
    SECONDS_OF_A_LAYER,
    SECONDS_WHILE_OTHERS_DECODE,
    SMALLEST_CHUNK,
    LayerWork,
    chunk_tokens,
    distance,
    rank,
)

log = logging.getLogger(__name__)

_NAMES: Final = 4096
_RIDES, _RIDES_ON_CPU = 256, 128
_ROWS, _ROWS_ON_CPU = 768, 512
"""In a pass, of all prompts. First tokens (p95) of 32 agents of Llama 3.1 8B (H100): 441 to 499 ms with 512, 362 to 375
with 768, 372 to 409 with 1,024.
"""
_MEASURED: Final = 128
_PASS_SECONDS_ON_CPU: Final = (2.0, 4.0)
"""With and without waiting streams."""


@dataclass(eq=False, repr=False, kw_only=True)
class PromptEngine(ABC):
    """Engine thread only."""

    model: Any
    store: KVStore
    others_decode: Callable[[], bool] = lambda: False
    asked: Callable[[], bool] = lambda: False
    flush: Callable[..., object] = lambda soon: None  # noqa: ARG005
    """Called when tokens are emitted; `soon`: they cannot wait."""
    stepped: Callable[[str], object] = lambda _: None
    """Called for each chunk ("prefill") and each pass ("decode")."""
    headroom: Headroom = field(default_factory=Headroom)
    work: LayerWork = field(default_factory=LayerWork)
    gathering: Gathering = field(default_factory=Gathering, init=False)
    _waiting: list[TurnJob] = field(default_factory=list, init=False)
    _written: dict[TurnJob, Written] = field(default_factory=dict, init=False)
    _to_clear: bool = field(default=False, init=False)
    _computed_much: bool = field(default=False, init=False)
    _tokens_per_second: float = field(default=0.0, init=False)
    _measured: set[int] = field(default_factory=set, init=False)
    """Distances."""
    _kept: dict[bytes, None] = field(default_factory=dict, init=False)

    @property
    def prompts(self) -> int:
        return len(self._waiting) + self.gathering.expected

    @property
    @abstractmethod
    def running(self) -> int:
        """Number of turns that generate."""

    def _finish(self, job: TurnJob) -> None:
        guarded(job.finish, job.fail)

    def _drop_cancelled_prompts(self) -> None:
        for job in [job for job in self._waiting if job.cancelled.is_set()]:
            self._waiting.remove(job)
            self._written.pop(job, None)
            guarded(job.cancel, job.fail)

    def _riders(self) -> list[TurnJob]:
        """Start and return the turns that ride in the next pass, the shortest first, with aging."""
        ready, found = self._ready, []
        waiting, names = [job for job in ready if self._rides(job)], Counter(job.next_block for job in ready)
        waiting.sort(key=_rank)
        left, started = self._room(waiting), 0
        for job in waiting:
            if job.remaining > left:
                job.waited_steps += 1
                continue
            if self._waits_for_another(job, names):
                continue
            if not job.started:
                guarded(partial(self._start, job, started), partial(self._fail, job))
                started += self.store.start_bytes(job.position) if job.arrays else 0
            if job.started and job in self._waiting and self._rides(job) and job.remaining <= left:
                left -= job.remaining
                found.append(job)
        return found

    def _room(self, waiting: Sequence[TurnJob]) -> int:
        if not waiting:
            return 0
        rows = min(self._rows, sum(job.remaining for job in waiting))
        left = self.headroom.most(max(job.position for job in waiting), rows, waiting[0].remaining)
        waiting[0].cramped = waiting[0].cramped or not left
        return left

    @property
    def _rows(self) -> int:
        if on_cuda():
            return _ROWS
        times = _PASS_SECONDS_ON_CPU if on_cpu() else (SECONDS_WHILE_OTHERS_DECODE, SECONDS_ALONE)
        by_time = int(self._tokens_per_second * times[not self._others_wait()])
        return max(FEWEST_TOKENS, min(_ROWS_ON_CPU if on_cpu() else _ROWS, by_time))

    def _gathers(self) -> bool:
        new = all(self._rides(job) and not job.started for job in self._ready)
        return self.gathering.waits(idle=bool(self._ready) and new and not self._others_wait())

    def _rides(self, job: TurnJob) -> bool:
        """Recurrent layers, those that attend themselves, and turns short of memory take one token at a time."""
        if job.decoding is None or job.chunk is not None:
            return False
        geometry = self.store.geometry
        by_one = job.cramped or not self.model.rides or geometry.in_order or geometry.shows_arrays
        limit = 1 if by_one else min(_RIDES_ON_CPU if on_cpu() else _RIDES, self._rows)
        return 0 < job.remaining <= limit and not any(job.position < at < job.tokens for at in job.checkpoints)

    def _start(self, job: TurnJob, pending_bytes: int = 0) -> None:
        nbytes = self.store.start_bytes(job.reused) if job.arrays else 0
        room = not nbytes or self.headroom.make(pending_bytes + nbytes)
        job.start()
        if not room and job.kv is not None:
            self.store.forgo_arrays(job.kv)

    def _advance(self, job: TurnJob) -> None:
        if job.chunk is None:  # Aging counts chunks: stops are many.
            for other in self._waiting:
                other.waited_steps = 0 if other is job else other.waited_steps + 1
        guarded(partial(self._prefill, job), partial(self._fail, job))

    @property
    def _ready(self) -> list[TurnJob]:
        return [job for job in self._waiting if not job.blocks.looking]

    def _next(self) -> TurnJob | None:
        """Each block is computed once: who is about to compute a prompt's first block goes before it."""
        names = Counter(job.next_block for job in self._ready)
        ready = [job for job in self._ready if not self._rides(job) or self._waits_for_another(job, names)]
        if not (ready := [job for job in ready if not job.blocks.looking]):
            return None
        job = min(ready, key=_rank)
        if job.started or not (name := job.next_block):
            return job
        if ahead := next((each for each in ready if each.started and each.next_block == name), None):
            return ahead
        return None if name in self._kept and job.blocks.look_for(name) else job

    def _waits_for_another(self, job: TurnJob, names: Counter[bytes]) -> bool:
        """Return whether a prompt finds its next block when another has computed it."""
        if job.started or not (name := job.next_block):
            return False
        return names[name] > 1 or (name in self._kept and job.blocks.look_for(name))

    def _fail(self, job: TurnJob, error: Exception) -> None:
        """After a failed allocation, begin once more, in small chunks."""
        self._written.pop(job, None)
        if ran_out(error) and job in self._waiting and not job.cramped:
            log.warning("no memory for a chunk of a prompt, which is begun again: %s", error)
            error.__traceback__ = None  # Its frames hold arrays.
            job.cramped = True
            self.headroom.recover()
            guarded(job.restart, partial(self._fail, job))
            return
        if job in self._waiting:
            self._waiting.remove(job)
        job.fail(self.headroom.explained(error))

    def _prefill(self, job: TurnJob) -> None:
        if not job.started:
            self._start(job)
        if not self._compute(job) or job.decoding:
            return
        if not job.remaining:
            job.prefilled()
            self._waiting.remove(job)
            self._finish(job)

    def _compute(self, job: TurnJob) -> bool:
        left = job.remaining - (job.decoding is not None)  # The last token rides, for its logits.
        if job.chunk is None and left > 0:
            job.chunk = self._next_chunk(job)
        chunk = job.chunk
        if chunk is None:
            return True
        if not self._go_on(chunk, job.cancelled.is_set):
            return False
        job.chunk = None
        self._computed_much = self._computed_much or chunk.tokens > _RIDES
        if self._computed_much and job.remaining <= (job.decoding is not None):
            self._to_clear, self._computed_much = True, False
        if (written := self._written.pop(job, None)) is not None:
            written.put()
        self._name(job.computed(Chunk(chunk.began, time.monotonic(), chunk.position, chunk.tokens)))
        return True

    def _name(self, names: Sequence[bytes]) -> None:
        for name in names:
            self._kept[name] = None
        while len(self._kept) > _NAMES:
            del self._kept[next(iter(self._kept))]

    def _seconds(self, layers: int) -> float:
        alone = max(SECONDS_ALONE, SECONDS_OF_A_LAYER * layers)
        return SECONDS_WHILE_OTHERS_DECODE if self._others_wait() else alone

    def _next_chunk(self, job: TurnJob) -> PrefillChunk:
        assert job.kv is not None
        tokens, position, speed = job.tokens, job.position, self._tokens_per_second
        layers = self.store.geometry.all_layers
        most = SMALLEST_CHUNK if job.cramped else chunk_tokens(position, speed, self._seconds(layers))
        if on_metal() and (not speed or distance(position) not in self._measured):
            most = min(most, self.work.unmeasured_tokens(position))
        if unpacked := self.store.pass_bytes(job.kv):  # It cannot stop between layers.
            most = min(most, max(FEWEST_TOKENS, int(speed * SECONDS_WHILE_OTHERS_DECODE)))
        last = tokens if job.decoding is None else tokens - 1
        end = position + self.headroom.chunk(position, min(most, last - position), unpacked)
        stops = {*job.checkpoints, last // BLOCK_TOKENS * BLOCK_TOKENS} if job.resumable else job.checkpoints
        end = next_stop(self.store.geometry, position, stops, min(end, last))
        ids, of = job.between(position, end), Pass([Piece(job.kv, end - position)], rows=False)
        caches, began = self.store.caches(of), time.monotonic()
        self.model(mx.array([ids]), caches)  # Lazy with arrays: nothing after the last layer's KV is computed.
        self._written[job] = written = self.store.taken(of, caches)
        chunk = PrefillChunk(caches, written.state, position, end - position, speed)
        if unpacked:
            chunk.seconds = time.monotonic() - began
        return chunk

    def _go_on(self, chunk: PrefillChunk, cancelled: Callable[[], bool]) -> bool:
        began = time.monotonic()

        def stop() -> bool:
            too_long = time.monotonic() - began >= SECONDS_WHILE_OTHERS_DECODE and self._others_wait()
            return too_long or self.asked() or cancelled()

        if not chunk.advance(stop):
            return False
        if chunk.tokens >= self._fewest_measured(chunk.position):
            self._tokens_per_second = chunk.tokens / max(chunk.seconds, 1e-6)
            self._measured.add(distance(chunk.position))
        self.stepped("prefill")
        return True

    def _fewest_measured(self, position: int) -> int:
        if not on_metal():
            return _MEASURED
        return min(_MEASURED, self.work.unmeasured_tokens(position)) if self._tokens_per_second else FEWEST_TOKENS

    def _others_wait(self) -> bool:
        return self.running > 0 or self.others_decode()


def _rank(job: TurnJob) -> int:
    return rank(job.remaining, job.waited_steps)


def guarded(work: Callable[[], object], failed: Callable[[Exception], object]) -> None:
    """An exception ends that turn, not the thread, unless the device is lost."""
    try:
        work()
    except Exception as error:  # noqa: BLE001 - the rim of a turn: it, and only it, gets the error
        end_if_lost(error)
        failed(error)
