"""Nothing is copied when turns come and go: memory that a join, a leave, a commit and a decode step take, beside what
a copy of a row's K and V takes, or of a segment of the pool.
"""

import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import mlx.core as mx
import pytest

from benchmarks.loading import load
from inference_service.domain import Sampling
from inference_service.engine.generation import Decoding, TurnJob
from inference_service.engine.paged.checkpoints import Start
from inference_service.engine.paged.passes import Pass, Piece
from inference_service.engine.paged.sequence import Sequence
from inference_service.engine.paged.store import KVStore
from inference_service.models.fingerprint import ContentHashes
from inference_service.models.loaded import LoadedModel
from tests.tiny_models import write_gemma3, write_llama

LONG = 12_000
"""Tokens of a context, far from where arrays grow."""
ROOM = 48
"""Blocks of a turn."""


def long_llama(directory: Path) -> Path:
    return write_llama(directory, context=16384)


def long_gemma(directory: Path) -> Path:
    return write_gemma3(directory, context=16384)


@pytest.fixture(scope="module", params=[long_llama, long_gemma], ids=["llama", "gemma3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    path = request.param(tmp_path_factory.mktemp("model"))
    return load("tiny", str(path), hashes=ContentHashes(tmp_path_factory.mktemp("hashes") / "hashes.json"))


class Work:
    """Turns with long contexts, of any K and V, on a model's engine."""

    def __init__(self, model: LoadedModel) -> None:
        self.engine, self.store = model.engine, model.arenas
        self.geometry = model.geometry
        self.turns = 0

    @property
    def one_side(self) -> int:
        """Bytes of K or of V as an array of one layer and a long context."""
        full = self.geometry.full
        return LONG * full.kv_heads * min(full.k_dim, full.v_dim) * self.geometry.dtype.size

    def begin(self, context: int, new: int, tokens: int) -> TurnJob:
        """Return a turn of `new` tokens and `tokens` generated ones."""
        at, pieces = self.turns, 3 * self.geometry.checkpoint_pieces
        self.turns += 1
        blocks = range(at * ROOM, (at + 1) * ROOM)
        start = Start(blocks, range(at * pieces, (at + 1) * pieces))
        kv = self.store.started(start)
        if context:
            self.fill(kv, context)

        def kv_again() -> Sequence:
            self.store.resume(kv)
            return kv

        prompt = [1 + at % 30 for at in range(context + new)]
        decoding = Decoding(tokens, sampling=Sampling(ignore_eos=True))
        job = TurnJob(prompt, kv_again, decoding, lambda event: None, threading.Event(), reused=context)
        self.engine.add(job)
        return job

    def fill(self, kv: Sequence, tokens: int, store: KVStore | None = None) -> None:
        """Any K and V of so many tokens."""
        store, of = store or self.store, Pass([Piece(kv, tokens)])
        caches = store.caches(of)
        for group in self.geometry.groups:
            for layer in group.layers:
                shape = (1, group.kv_heads, tokens)
                k, v = (mx.random.normal((*shape, width)) for width in (group.k_dim, group.v_dim))
                caches[layer].update_and_fetch(k.astype(self.geometry.dtype), v.astype(self.geometry.dtype))
        written = store.taken(of, caches)
        mx.eval(written.state)
        written.put()
        kv.working.clear()

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.engine.step()

    def needed(self, work: Callable[[], object]) -> int:
        """Bytes that it needs at most beyond what there was before, of arrays and of host memory."""
        mx.synchronize()
        mx.clear_cache()
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        tracemalloc.start()
        try:
            work()
            mx.synchronize()
            _, host = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        return mx.get_peak_memory() - before + host


@pytest.fixture
def work(model: LoadedModel) -> Iterator[Work]:
    found = Work(model)
    yield found
    for job in [*model.engine._running, *model.engine._waiting]:
        job.cancelled.set()
    while model.engine.step():
        pass


def test_a_step_of_rows_copies_none(work: Work) -> None:
    for _ in range(2):
        work.begin(LONG, 1, 90)
    work.steps(4)
    assert work.engine.running == 2
    for _ in range(5):
        assert work.needed(work.engine.step) < work.one_side / 2


def test_joining_and_leaving_copies_no_row(work: Work) -> None:
    first, second, third = (work.begin(LONG, 1, tokens) for tokens in (90, 14, 90))
    work.steps(4)
    short = work.begin(0, 10, 30)
    assert work.needed(lambda: work.steps(2)) < work.one_side / 2
    assert work.engine.running == 4
    assert work.needed(lambda: work.steps(12)) < work.one_side / 2
    assert second.future.done()
    third.cancelled.set()
    assert work.needed(lambda: work.steps(2)) < work.one_side / 2
    assert third.future.done()
    assert not first.future.done()
    assert not short.future.done()


def test_a_commit_copies_no_more_than_a_state(work: Work) -> None:
    job = work.begin(LONG, 1, 10)
    work.steps(12)
    kv, _ = job.future.result(0)
    assert kv is not None
    found = []
    assert work.needed(lambda: found.append(work.store.checkpoints.capture(kv, last=True))) < 50_000
    assert (found[0] is None) == work.geometry.resumes_anywhere


def test_going_on_from_the_pool_takes_arrays_once_and_no_segment(work: Work) -> None:
    """On a device that attends over blocks it would take nothing."""
    geometry = work.geometry
    kv = work.store.started(Start(range(ROOM), range(3 * geometry.checkpoint_pieces)))
    work.fill(kv, LONG)
    pieces = range(3 * geometry.checkpoint_pieces, 6 * geometry.checkpoint_pieces)
    checkpoint = work.store.checkpoints.capture(kv)
    start = Start(kv.full.blocks, pieces, LONG, LONG, checkpoint=checkpoint, arrays=False)
    assert work.needed(lambda: work.store.started(start)) < 200_000
    again = work.store.started(start)

    def resume() -> None:
        work.store.resume(again)
        mx.eval([each.state for each in again.working.values()])

    packed = LONG * geometry.bytes_per_token + geometry.checkpoint_bytes
    assert work.needed(resume) < 1.5 * geometry.array_bytes(LONG) + 4 * packed + 4 * work.one_side


def test_no_call_copies_a_segment(model: LoadedModel) -> None:
    """In a pool far larger than what a sequence has, a copy shows."""
    store, work = KVStore(model.geometry, 200, 800, model.codecs), Work(model)
    segment = min(arena.nbytes for arena in (store.full, store.windows) if arena is not None)
    kv = store.sequence([150, 3], range(200, 240))
    work.fill(kv, 300, store)
    checkpoint = store.checkpoints.capture(kv)
    start = Start([150, 4], range(100, 140), 300, 256, (3, 4), checkpoint=checkpoint, arrays=False)
    calls = (
        lambda: store.started(start),
        lambda: store.read_block(150, 256)(),
        lambda: checkpoint and store.checkpoints.read(checkpoint)(),
        lambda: work.fill(kv, 10, store),
    )
    assert max(work.needed(call) for call in calls) < segment / 8
