"""Sequences go on from blocks and checkpoints in the pool, and from files, bit for bit as if computed."""

import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from agentmem.kv.blockfile import BLOCK_TOKENS
from inference_service.domain import Sampling
from inference_service.engine.generation import Decoding, TurnJob
from inference_service.engine.paged import arena as arena_module
from inference_service.engine.paged.checkpoints import Start
from inference_service.engine.paged.sequence import SLACK, Checkpoint, Sequence
from inference_service.engine.paged.store import KVStore
from tests.inference_service.engine.paged.bits import (
    Bits,
    as_file,
)
from tests.inference_service.engine.paged.world import World
from tests.tiny_hybrids import write_falcon_h1, write_qwen3_next
from tests.tiny_models import write_deepseek2, write_gemma3, write_gpt_oss, write_llama

MORE = 40
"""Tokens that go on from what is tested."""
POISON = 0xFFFFFFFF
"""Scales of it are NaN."""

SLOW = [write_gpt_oss, write_deepseek2, write_falcon_h1, write_qwen3_next]


class Pool(World):
    """Sequences in their own memory, that may begin again. Blocks from 20 on and pieces from 200 on are nobody's; all
    is poisoned.
    """

    def __init__(self, world: World) -> None:
        self.model, self.oracle = world.model, world.oracle
        self.store = KVStore(self.model.geometry, 40, 400, self.model.codecs)
        poison(self.store, range(40), range(400))
        self.one = self.store.sequence([3, 1, 2], range(80))
        self.tokens = {self.one: np.random.default_rng(0).integers(1, 32, 500).tolist()}
        self.said, self.as_rows = {self.one: []}, defaultdict(list)
        self.free = list(range(200, 400))

    @property
    def checkpoints(self) -> Any:
        return self.store.checkpoints

    def capture(self) -> Checkpoint | None:
        captured: Checkpoint | None = self.checkpoints.capture(self.one)
        return captured

    def pieces(self) -> list[int]:
        found, self.free = self.free[:80], self.free[80:]
        return found

    def begin(self, start: Start) -> Sequence:
        sequence = self.store.started(start)
        assert sequence.length == start.tokens
        self.tokens[sequence], self.said[sequence] = self.tokens[self.one], []
        return sequence

    def error(self) -> float:
        """Return the KV of who has computed all of its tokens."""
        said, self.said = self.said, {self.one: self.said[self.one]}
        found, self.said = super().error(), said
        return found

    def go_on(self, sequence: Sequence) -> npt.NDArray[np.float32]:
        """Log-probabilities of a chunk and two single tokens more, finite ones."""
        before = len(self.said[sequence])
        for n in (MORE, 1, 1):
            self.run((sequence, n))
        found = np.concatenate(self.said[sequence][before:])
        assert np.isfinite(found).all()
        return found


def poison(store: KVStore, blocks: Any, pieces: Any) -> None:
    for arena, numbers in ((store.full, blocks), (store.windows, pieces)):
        if isinstance(arena, arena_module.HostArena):
            arena.take(numbers)
            for number in numbers:
                arena.words(number)[:] = POISON


def held(store: KVStore, sequence: Sequence) -> list[dict[str, bytes]]:
    """All that a sequence has in blocks and states."""
    end, found = sequence.length, []
    if store.full.layout.tensors:
        found.append(store.full.read_run(sequence.full.of(0, end), 0, end)())
    if sequence.window is not None and store.windows is not None:
        start = sequence.window.kept_from(end)
        found.append(store.windows.read_run(sequence.window.of(start, end), start, end)())
    if sequence.states is not None:
        arrays = sequence.states.rows([sequence.row]).arrays
        found.append({str(at): np.array(a.astype(mx.float32)).tobytes() for at, a in enumerate(arrays)})
    return found


def block_files(pool: Pool, tokens: int, first: int = 0) -> list[Bits]:
    """The files of blocks from the `first` on."""
    files = []
    for index in range(first, -(-tokens // BLOCK_TOKENS)):
        count = min(BLOCK_TOKENS, tokens - index * BLOCK_TOKENS)
        data = pool.store.read_block(pool.one.full.blocks[index], count)()
        files.append(as_file(data, pool.model.geometry.block_shapes(count)))
    return files


@pytest.fixture(
    scope="module", params=[write_llama, write_gemma3, *(pytest.param(each, marks=pytest.mark.slow) for each in SLOW)]
)
def write(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(scope="module")
def world(write: Callable[[Path], Path], tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"), write)


@pytest.fixture
def pool(world: World) -> Pool:
    return Pool(world)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("llama"), write_llama)


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("gemma"), write_gemma3)


def computed(pool: Pool, tokens: int) -> Checkpoint | None:
    while pool.one.length < tokens:
        pool.run((pool.one, min(200, tokens - pool.one.length)))
    return pool.capture()


def hot(pool: Pool, tokens: int, checkpoint: Checkpoint | None) -> Start:
    """A start from blocks in the pool, of which the last is cut unless it is full."""
    full = tokens // BLOCK_TOKENS
    cut = (pool.one.full.blocks[full], 21) if tokens % BLOCK_TOKENS else None
    blocks = [*pool.one.full.blocks[:full], *([21, 22, 23][: 3 - full])]
    return Start(blocks, pool.pieces(), tokens, full * BLOCK_TOKENS, cut, checkpoint=checkpoint)


@pytest.mark.parametrize("tokens", [256, 300, 415])
@pytest.mark.parametrize("arrays", [True, False], ids=["arrays", "blocks"])
def test_who_goes_on_from_the_pool_is_who_computed_it(pool: Pool, tokens: int, arrays: bool) -> None:
    start = replace(hot(pool, tokens, computed(pool, tokens)), arrays=arrays)
    again = pool.begin(start)
    assert bool(again.working) == arrays
    before = held(pool.store, pool.one)
    assert held(pool.store, again) == before
    found = pool.go_on(again)
    assert bool(again.working) == arrays
    assert held(pool.store, pool.one) == before, "what others have is not written"
    assert np.array_equal(found, pool.go_on(pool.one))
    assert held(pool.store, again) == held(pool.store, pool.one)
    assert pool.error() < 5e-3


@pytest.mark.parametrize("tokens", [256, 300, 415])
@pytest.mark.parametrize("hot_blocks", [0, 1])
def test_who_goes_on_from_files_is_who_computed_it(pool: Pool, tokens: int, hot_blocks: int) -> None:
    checkpoint = computed(pool, tokens)
    files = block_files(pool, tokens, hot_blocks)
    blocks = [*pool.one.full.blocks[:hot_blocks], *[25, 21, 23][: 3 - hot_blocks]]
    placed = list(zip(blocks[hot_blocks:], files, strict=False))
    window = None
    if checkpoint is not None:
        shapes = pool.model.geometry.checkpoint_shapes(checkpoint.tokens)
        data = pool.checkpoints.read(checkpoint)()
        assert list(data) == list(shapes)
        window = as_file(data, shapes)
    start = Start(blocks, pool.pieces(), tokens, hot_blocks * BLOCK_TOKENS, files=placed, window_file=window)
    again = pool.begin(start)
    assert held(pool.store, again) == held(pool.store, pool.one)
    assert np.array_equal(pool.go_on(again), pool.go_on(pool.one))
    if checkpoint is not None:
        assert pool.checkpoints.read(checkpoint)() == data
        now = pool.checkpoints.capture(again)
        assert pool.checkpoints.read(now)() == pool.checkpoints.read(pool.capture())()


@pytest.mark.parametrize("surplus", [1, 17, 100, SLACK])
@pytest.mark.parametrize("from_file", [False, True], ids=["pool", "file"])
def test_a_window_is_good_for_some_tokens_fewer(gemma: World, surplus: int, from_file: bool) -> None:
    pool = Pool(gemma)
    checkpoint = computed(pool, 420)
    assert checkpoint is not None
    if surplus < SLACK:
        pool.run((pool.one, 30))
    before, tokens = pool.checkpoints.read(checkpoint)(), 420 - surplus
    start = hot(pool, tokens, checkpoint)
    if from_file:
        file = as_file(before, pool.model.geometry.checkpoint_shapes(checkpoint.tokens))
        start = replace(start, checkpoint=None, window_file=file, window_surplus=surplus)
    again = pool.begin(start)
    pool.one.trim(420 - surplus)
    assert not pool.one.lost
    assert np.array_equal(pool.go_on(again), pool.go_on(pool.one))


def test_a_checkpoint_stays_what_it_is(pool: Pool) -> None:
    checkpoint = computed(pool, 300)
    if checkpoint is None:
        assert pool.model.geometry.resumes_anywhere
        return
    data = pool.checkpoints.read(checkpoint)()
    lengths = [300] if pool.model.geometry.states else [300, 290]
    others = [pool.begin(hot(pool, tokens, checkpoint)) for tokens in lengths[:1]]
    for sequence in (pool.one, *others):
        pool.run((sequence, 120))
        for _ in range(5):
            pool.run((sequence, 1))
        assert pool.checkpoints.read(checkpoint)() == data
    poison(pool.store, [], [piece for piece in range(400) if piece not in checkpoint.pieces])
    assert pool.checkpoints.read(checkpoint)() == data
    assert np.isfinite(pool.go_on(pool.begin(hot(pool, 300, checkpoint)))).all()


def test_shared_blocks_are_not_written_even_where_they_are_computed_again(llama: World) -> None:
    pool = Pool(llama)
    computed(pool, 420)
    before = [pool.store.full.read(block, BLOCK_TOKENS)() for block in pool.one.full.blocks[:2]]
    again = pool.begin(Start([*pool.one.full.blocks[:2], 21], (), 100, 420))
    pool.tokens[again] = pool.tokens[again][::-1]
    pool.run((again, 300))
    pool.run((again, 40))
    pool.run((again, 1))
    assert [pool.store.full.read(block, BLOCK_TOKENS)() for block in pool.one.full.blocks[:2]] != before
    first, second = (pool.store.full.read(block, BLOCK_TOKENS)() for block in pool.one.full.blocks[:2])
    assert first == before[0]
    views = [as_file(data, pool.model.geometry.block_shapes(BLOCK_TOKENS)) for data in (second, before[1])]
    for name in views[0]:
        now, then = (view[name][:, :, : 420 - BLOCK_TOKENS] for view in views)
        assert np.array_equal(now, then)


def test_free_memory_is_never_read(pool: Pool) -> None:
    checkpoint = computed(pool, 200)
    again = pool.begin(hot(pool, 200, checkpoint))
    again.arrays = False
    again.working.clear()
    for n in (100, 1, 1, 40):
        for sequence in (pool.one, again):
            own = {*sequence.full.of(0, sequence.length)}
            others = {21, 22, 23} if sequence is pool.one else {*pool.one.full.blocks}
            used = own | others
            poison(pool.store, [block for block in range(40) if block not in used], [])
            if sequence.window is not None:
                poison(pool.store, [], sequence.window.spare)
            behind(pool.store, sequence)
            pool.run((sequence, n))
    one, other = (np.concatenate(pool.said[sequence][-4:]) for sequence in (pool.one, again))
    assert np.isfinite(one).all()
    assert np.array_equal(one, other)


def behind(store: KVStore, sequence: Sequence) -> None:
    """Poison the rest of the last block after a sequence's tokens."""
    tables = [(store.full, sequence.full), (store.windows, sequence.window)]
    for arena, table in tables:
        if isinstance(arena, arena_module.HostArena) and table is not None and sequence.length:
            inside = (sequence.length - 1 - table.first) % table.tokens + 1
            for view in arena.layout.views(arena.words(table.at(sequence.length - 1))).values():
                view[:, :, inside:].view(np.uint8)[...] = 0xFF


@pytest.mark.parametrize("cancel", [False, True])
def test_a_prompt_that_can_be_resumed_needs_no_more_pieces_the_longer_it_is(world: World, cancel: bool) -> None:
    model = world.model
    if model.geometry.resumes_anywhere:
        return
    pieces = 3 * model.geometry.checkpoint_pieces
    store, prompt = model.arenas, [1 + at * 7 % 30 for at in range(2500)]
    job = TurnJob(
        prompt,
        lambda: store.started(Start(range(10), range(pieces))),
        Decoding(5, sampling=Sampling(ignore_eos=True)),
        lambda event: None,
        threading.Event(),
        checkpoints=[700, 2500],
        resumable=True,
    )
    model.engine.add(job)
    checkpoint, data = None, dict[str, bytes]()
    while model.engine.step():
        checkpoint = checkpoint or job.captured.get(700)
        if checkpoint is not None:
            data = data or store.checkpoints.read(checkpoint)()
            assert store.checkpoints.read(checkpoint)() == data
        if cancel and job.latest is not None and job.latest.position > 1800:
            job.cancelled.set()
    assert (job.future.exception(0) is not None) == cancel
    assert checkpoint is not None
    assert job.latest is not None
    assert job.latest.position > 1800
    assert job.latest.position % BLOCK_TOKENS == 0
    assert store.checkpoints.read(job.latest)() != data
    if cancel:
        return
    kv, _ = job.future.result(0)
    assert kv is not None
    if kv.window is not None:
        assert {*checkpoint.pieces, *job.latest.pieces}.isdisjoint(kv.window.spare)
    assert store.checkpoints.capture(kv, last=True) is not None
