"""What sequences go on from: blocks and checkpoints in the pool, and files. Bit for bit as who computed it goes on."""

import threading
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
from inference_service.engine.geometry import Geometry, TensorShapes
from inference_service.engine.paged import arena as arena_module
from inference_service.engine.paged.arena import Arena
from inference_service.engine.paged.checkpoints import Start
from inference_service.engine.paged.passes import ArrayKVCache, Pass, Piece, StatesCache
from inference_service.engine.paged.sequence import SLACK, Checkpoint, Sequence, States, WindowTable
from inference_service.engine.paged.store import KVStore
from tests.inference_service.engine.paged.bits import (
    CASES,
    NUMBERS,
    Bits,
    Case,
    cut,
    data_of,
    every_case,
    geometry,
    random_bits,
)
from tests.inference_service.engine.paged.test_passes import World
from tests.tiny_hybrids import write_falcon_h1, write_qwen3_next
from tests.tiny_models import write_deepseek2, write_gemma3, write_gpt_oss, write_llama

MORE = 40
"""Tokens that go on from what is tested."""
POISON = 0xFFFFFFFF
"""Scales of it are NaN."""

SLOW = [write_gpt_oss, write_deepseek2, write_falcon_h1, write_qwen3_next]


class Pool(World):
    """Sequences in memory of their own, that may begin anew. Blocks from 20 on and pieces from 200 on are nobody's; all
    is poisoned.
    """

    def __init__(self, world: World) -> None:
        self.model, self.oracle = world.model, world.oracle
        self.store = KVStore(self.model.geometry, 40, 400, self.model.codecs)
        poison(self.store, range(40), range(400))
        self.one = self.store.sequence([3, 1, 2], range(80))
        self.tokens = {self.one: np.random.default_rng(0).integers(1, 32, 500).tolist()}
        self.said = {self.one: []}
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
        """A sequence of the same tokens."""
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


def as_file(data: dict[str, bytes], shapes: TensorShapes) -> Bits:
    return {name: np.frombuffer(data[name], NUMBERS[dtype]).reshape(shape) for name, (dtype, shape) in shapes.items()}


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
    """One has computed so many tokens."""
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
    """Where the last block is full, and where it is cut; with K and V as arrays, and from blocks for each pass."""
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
    """While its sequence goes on, and others do that began with it, from its end and from before."""
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


def test_what_is_over_is_not_written(gemma: World) -> None:
    """Its blocks may be others' by then."""
    pool = Pool(gemma)
    computed(pool, 100)
    before = [pool.store.full.read(3, BLOCK_TOKENS)()]
    pool.one.ended = True
    pool.run((pool.one, 20))
    assert [pool.store.full.read(3, BLOCK_TOKENS)()] == before


def test_free_memory_is_never_read(pool: Pool) -> None:
    """All that is nobody's is NaN, before each pass: free blocks, pieces behind a window, and behind a block's end."""
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
    """Poison what lies behind a sequence's tokens in their last block."""
    tables = [(store.full, sequence.full), (store.windows, sequence.window)]
    for arena, table in tables:
        if isinstance(arena, arena_module.HostArena) and table is not None and sequence.length:
            inside = (sequence.length - 1 - table.first) % table.tokens + 1
            for view in arena.layout.views(arena.words(table.at(sequence.length - 1))).values():
                view[:, :, inside:].view(np.uint8)[...] = 0xFF


def test_reading_free_memory_is_a_fault_that_is_found(llama: World) -> None:
    pool = Pool(llama)
    computed(pool, 300)
    pool.one.full.blocks[1] = 30
    with pytest.raises(AssertionError):
        pool.go_on(pool.begin(hot(pool, 300, None)))


def test_a_copy_that_is_left_out_is_a_fault_that_is_found(llama: World) -> None:
    """A write to a shared block without a copy: others' tokens there change."""
    pool = Pool(llama)
    computed(pool, 300)
    start = hot(pool, 280, None)
    blocks = [*start.blocks]
    blocks[1] = pool.one.full.blocks[1]
    before = held(pool.store, pool.one)
    again = pool.begin(replace(start, blocks=blocks, cut=None))
    pool.tokens[again] = pool.tokens[again][::-1]
    pool.go_on(again)
    assert held(pool.store, pool.one) != before


def fed(store: KVStore, sequence: Sequence, kv: dict[int, tuple[mx.array, mx.array]], n: int) -> None:
    """The next n tokens of K and V by layer."""
    of = Pass([Piece(sequence, n)])
    at = sequence.length
    caches = store.caches(of)
    for layer, cache in enumerate(caches):
        if isinstance(cache, ArrayKVCache):
            cache.update_and_fetch(*(x[:, :, at : at + n] for x in kv[layer]))
        elif isinstance(cache, StatesCache):
            cache.cache = [mx.full((1, 3, 8), at + n, mx.float32), mx.full((1, 2), at + n, mx.bfloat16)]
    written = store.taken(of, caches)
    mx.eval(written.state, [cache.state for cache in caches])
    written.put()


def random_kv(made: Geometry, tokens: int) -> dict[int, tuple[mx.array, mx.array]]:
    found = {}
    for group in made.groups:
        for layer in group.layers:
            k, v = (
                mx.random.normal((1, group.kv_heads, tokens, width), key=mx.random.key(layer + 10 * side))
                for side, width in enumerate((group.k_dim, group.v_dim))
            )
            found[layer] = k.astype(made.dtype), v.astype(made.dtype)
    return found


@every_case
@pytest.mark.parametrize("window", [64, 100, 300])
@pytest.mark.parametrize("steps", [[1], [64], [320, 1], [200, 1, 1, 450, 3], [700]])
def test_files_hold_what_would_be_packed_of_all_tokens(case: Case, window: int, steps: list[int]) -> None:
    """Blocks, the last tokens of windows, and states, whatever the chunks; and once more after they were read."""
    made = geometry(case, window, states=True)
    kv = random_kv(made, 700)
    store = KVStore(made, 4, 2 * made.checkpoint_pieces)
    sequence = store.sequence([2, 0, 3], range(made.checkpoint_pieces))
    for n in steps:
        fed(store, sequence, kv, n)
    tokens, kept = sum(steps), min(sum(steps), window + SLACK)

    def packed(group: Any, start: int, end: int) -> dict[str, bytes]:
        found: dict[str, list[Any]] = {name: [] for name in made.shapes(group, 1)}
        for layer in group.layers:
            for side, quantized in zip("kv", store.codecs[layer].encode(*kv[layer]), strict=True):
                for part, array in quantized._asdict().items():
                    bits = array.view(mx.uint16) if array.dtype.size == 2 else array
                    found[f"{side}.{part}"].append(np.array(bits)[:, :, start:end])
        return data_of({name: np.concatenate(arrays) for name, arrays in found.items()})

    for block, start in zip([2, 0, 3], range(0, tokens, BLOCK_TOKENS), strict=False):
        end = min(tokens, start + BLOCK_TOKENS)
        assert store.read_block(block, end - start)() == packed(made.full, start, end)
    checkpoint = store.checkpoints.capture(sequence, last=True)
    assert checkpoint is not None
    assert checkpoint[:2] == (tokens, kept)
    assert len(checkpoint.pieces) <= made.checkpoint_pieces
    data = store.checkpoints.read(checkpoint)()
    states = {
        "state.5.0": np.full((3, 8), tokens, np.float32).tobytes(),
        "state.5.1": np.array(mx.full((2,), tokens, mx.bfloat16).view(mx.uint16)).tobytes(),
    }
    assert data == packed(made.sliding, tokens - kept, tokens) | states
    file = as_file(data, made.checkpoint_shapes(kept))
    own = range(made.checkpoint_pieces, 2 * made.checkpoint_pieces)
    again = store.started(Start([2, 0, 3], own, tokens, window_file=file, arrays=False))
    captured = store.checkpoints.capture(again, last=True)
    assert captured is not None
    assert set(captured.pieces).isdisjoint(checkpoint.pieces)
    assert store.checkpoints.read(captured)() == data


def test_memory_is_taken_by_segments_and_states_go_with_their_pieces() -> None:
    made = geometry(CASES[1], states=True)
    kv = random_kv(made, 300)
    each = made.checkpoint_pieces
    store = KVStore(made, 8, 4 * each, segments=(2, each))
    empty = store.nbytes
    sequence = store.sequence([5, 0], range(2 * each, 3 * each))
    taken = store.nbytes
    assert taken == empty + 2 * store.full.layout.nbytes + each * store.windows.layout.nbytes  # type: ignore[union-attr]
    fed(store, sequence, kv, 300)
    checkpoint = store.checkpoints.capture(sequence, last=True)
    assert checkpoint is not None
    assert store.nbytes == taken + made.state_bytes
    data = store.checkpoints.read(checkpoint)()
    store.release([1], [1])
    assert store.checkpoints.read(checkpoint)() == data
    store.release([2], [2])
    assert store.nbytes == empty
    with pytest.raises(LookupError):
        store.checkpoints.read(checkpoint)()
    store.close()
    assert not store.nbytes


def test_a_sequence_without_memory_takes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    made = geometry()
    store = KVStore(made, 8, 40, segments=(2, 10))
    monkeypatch.setattr(arena_module, "free_bytes", lambda: 1000)
    before = store.nbytes
    with pytest.raises(MemoryError):
        store.started(Start([0, 5], range(8)))
    with pytest.raises(MemoryError):
        store.started(Start([0, 1], range(20, 28)))
    assert store.nbytes == before
    assert store.started(Start([0, 1], range(8))).length == 0


@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize("window", [0, 64])
def test_a_long_prompt_keeps_its_latest_checkpoint_in_the_same_pieces(window: int, states: bool) -> None:
    """However often: the one before is given back. One that would leave nothing to go on with is not made."""
    made = geometry(window=window, states=states)
    kv = random_kv(made, 700)
    store = KVStore(made, 4, 60)
    sequence = store.sequence([2, 0, 3], range(2 * made.checkpoint_pieces))
    checkpoints, latest = store.checkpoints, None
    for n in [50] * 14:
        fed(store, sequence, kv, n)
        if latest is not None:
            checkpoints.drop(sequence, latest)
        latest = checkpoints.capture(sequence)
        assert (latest is None) == made.resumes_anywhere
    if latest is None:
        return
    data = checkpoints.read(latest)()
    states_held = checkpoints.nbytes
    sequence.trim(700)
    assert (checkpoints.capture(sequence) is None) == states, "a window's blocks are the same; a state is one more"
    end = checkpoints.capture(sequence, last=True)
    assert end is not None
    assert checkpoints.read(end)() == checkpoints.read(latest)() == data
    assert checkpoints.nbytes - states_held == made.state_bytes


def test_one_that_leaves_nothing_to_go_on_with_is_not_made() -> None:
    made = geometry()
    kv = random_kv(made, 700)
    store = KVStore(made, 4, 60)
    sequence = store.sequence([2, 0, 3], range(2 * made.checkpoint_pieces))
    fed(store, sequence, kv, 330)
    assert store.checkpoints.capture(sequence) is not None
    fed(store, sequence, kv, 330)
    assert store.checkpoints.capture(sequence) is None
    fed(store, sequence, kv, 40)
    assert store.checkpoints.capture(sequence, last=True) is not None


def test_layers_that_are_lost_make_no_checkpoint() -> None:
    made = geometry()
    kv = random_kv(made, 700)
    store = KVStore(made, 4, 60)
    sequence = store.sequence([2, 0, 3], range(40))
    fed(store, sequence, kv, 650)
    sequence.trim(650 - SLACK)
    assert store.checkpoints.capture(sequence) is not None
    sequence.trim(100)
    assert store.checkpoints.capture(sequence) is None


def test_what_assigns_to_elements_of_a_state_does_not_change_the_checkpoint() -> None:
    made = geometry(states=True)
    kv = random_kv(made, 300)
    store = KVStore(made, 4, 60)
    sequence = store.sequence([2, 0], range(20))
    fed(store, sequence, kv, 300)
    checkpoint = store.checkpoints.capture(sequence)
    assert checkpoint is not None
    data = store.checkpoints.read(checkpoint)()
    again = store.started(Start([2, 0], range(20, 40), 300, 300, checkpoint=checkpoint))
    for each in (sequence, again):
        cache = store.caches(Pass([Piece(each, 1)]))[-1]
        assert isinstance(cache, StatesCache)
        assert cache.cache[0] is not None
        cache.cache[0][0, 0] = 7.0
        mx.eval(cache.state)
    assert store.checkpoints.read(checkpoint)() == data


def test_views_of_a_chunk_do_not_keep_the_chunk() -> None:
    store = KVStore(geometry(window=0, states=True), 4, 8)
    sequence = store.sequence([0], [0])
    of = Pass([Piece(sequence, 200)])
    caches = store.caches(of)
    chunk = mx.zeros((1, 4096, 256))
    mx.eval(chunk)
    [cache] = [each for each in caches if isinstance(each, StatesCache)]
    cache.cache = [chunk[:, -3:], chunk[:, 5:7]]
    written = store.taken(of, caches)
    mx.eval(written.state)
    held_bytes = mx.get_active_memory()
    written.put()
    del chunk, cache, caches
    assert isinstance(sequence.states, States)
    assert mx.get_active_memory() <= held_bytes - 4096 * 256 * 4


def test_a_file_is_read_into_its_block() -> None:
    made = geometry(CASES[3])
    store = KVStore(made, 4, 20)
    buffers = store.host_buffers(2, 100)
    assert buffers is not None
    rng, wanted = np.random.default_rng(0), {}
    for name, (_, shape) in made.block_shapes(100).items():
        assert [view.shape for view in buffers[name]] == [shape[1:]] * shape[0]
        wanted[name] = rng.integers(0, 1 << 16, shape).astype(buffers[name][0].dtype)
        for view, layer in zip(buffers[name], wanted[name], strict=True):
            np.copyto(view, layer)
    assert store.read_block(2, 100)() == data_of(wanted)


@pytest.mark.parametrize("cancel", [False, True])
def test_a_prompt_that_can_be_resumed_needs_no_more_pieces_the_longer_it_is(world: World, cancel: bool) -> None:
    """What it keeps for a turn that may be cancelled is one checkpoint; what is wanted stays beside it."""
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


@every_case
@pytest.mark.parametrize("states", [False, True])
def test_files_come_out_of_the_pool_as_they_went_in(kind: type[Arena], case: Case, states: bool) -> None:
    """Whatever memory the pool is in: blocks, checkpoints, some tokens fewer of these, and a block that is cut."""
    made, tokens, window = geometry(case, 100, states=states), 700, 340
    each = made.checkpoint_pieces
    store = KVStore(made, 9, 4 * each)
    file = random_bits(made.checkpoint_shapes(window), 1)
    blocks = random_bits(made.block_shapes(3 * BLOCK_TOKENS), 2)
    files = [cut(blocks, at, min(at + BLOCK_TOKENS, tokens)) for at in range(0, tokens, BLOCK_TOKENS)]
    placed = list(zip([5, 0, 7], files, strict=True))
    start = Start([5, 0, 7], range(each), tokens, files=placed, window_file=file, arrays=False)
    one = store.started(start)
    checkpoint = store.checkpoints.capture(one, last=True)
    assert checkpoint is not None
    assert checkpoint[:2] == (tokens, window)
    fewer = 0 if states else 17
    own = range(2 * each, 3 * each)
    hot = Start([5, 0, 8], own, tokens - fewer, 512, (7, 8), checkpoint=checkpoint, arrays=False)
    warm = replace(start, pieces=range(3 * each, 4 * each), tokens=tokens - fewer, window_surplus=fewer)
    for again in (store.started(hot), store.started(warm)):
        captured = store.checkpoints.capture(again, last=True)
        assert captured is not None
        assert captured[:2] == (tokens - fewer, window - fewer)
        names = made.shapes(made.sliding, 1)  # type: ignore[arg-type]
        wanted = {name: x[:, :, : window - fewer] if name in names else x for name, x in file.items()}
        assert store.checkpoints.read(captured)() == data_of(wanted)
        assert store.full.read_run(again.full.blocks, 0, tokens)() == data_of(cut(blocks, 0, tokens))
    assert store.checkpoints.read(checkpoint)() == data_of(file)


def released_a_step_early(slide: Callable[[WindowTable, int], None]) -> Callable[[WindowTable, int], None]:
    def faulty(self: WindowTable, end: int) -> None:
        slide(self, end)
        if self.blocks and self.blocks[0] not in self.spare:
            self.spare.append(self.blocks[0])

    return faulty


def test_a_windows_block_that_is_released_early_is_found(gemma: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def window_of(pool: Pool) -> dict[str, bytes]:
        checkpoint = computed(pool, 450)
        return pool.checkpoints.read(checkpoint)()  # type: ignore[no-any-return]

    wanted = window_of(Pool(gemma))
    assert window_of(Pool(gemma)) == wanted
    monkeypatch.setattr(WindowTable, "slide", released_a_step_early(WindowTable.slide))
    assert window_of(Pool(gemma)) != wanted
