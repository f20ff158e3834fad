"""Less memory than the engine is about to take: what is let go, who goes on, and what the others are told."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentmem.errors import ResourceExhausted
from inference_service.engine.computing import EstimatedCost
from inference_service.engine.generation import TurnJob
from inference_service.engine.headroom import Headroom, ran_out
from inference_service.engine.paged.sequence import Sequence
from inference_service.engine.prefill import PrefillChunk
from inference_service.models.loaded import LoadedModel
from tests.inference_service.engine.batch_turns import begin, new_kv, prompt_of, right, run, until_told
from tests.oracle import Oracle

pytestmark = pytest.mark.sampled(2)

MIB = 1 << 20
CUDA = RuntimeError("cudaMallocAsync(&data, size, stream) failed: out of memory")


@pytest.mark.parametrize(
    ("error", "memory"),
    [
        (CUDA, True),
        (RuntimeError("[malloc] Unable to allocate 1024 bytes."), True),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("[metal::malloc] Resource limit (499000) exceeded."), True),
        (RuntimeError("[METAL] Command buffer execution failed: Insufficient Memory (00000008)"), False),
        (MemoryError(), True),
        (RuntimeError("no kernel"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_what_says_that_memory_ran_out(error: Exception, memory: bool) -> None:
    assert ran_out(error) is memory


@dataclass
class Free:
    """Free memory, and how much the pool could give back."""

    nbytes: int
    pool: int = 0
    asked: list[int] = field(default_factory=list)

    def relieve(self, nbytes: int) -> None:
        """As a pool does it: not at all where all of it is not enough."""
        self.asked.append(nbytes)
        if nbytes <= self.pool:
            self.nbytes, self.pool = self.nbytes + self.pool, 0

    def headroom(self, limit_bytes: int) -> Headroom:
        return Headroom(limit_bytes, self.relieve, lambda: self.nbytes)


def test_chunks_are_as_large_as_there_is_memory_for() -> None:
    assert Free(2048).headroom(2048).chunk(0, 2048) == 2048
    assert Free(2047).headroom(2048).chunk(0, 2048) == 1024
    assert Free(300).headroom(2048).chunk(0, 2000) == 250
    assert Free(0).headroom(2048).chunk(0, 64) == 64, "a short one takes less than the floor"
    assert Free(0).headroom(0).chunk(0, 2048) == 2048, "it is not known what this model takes"
    with pytest.raises(ResourceExhausted, match=r"128 tokens of the prompt needed about 1\.3 MB at once, and 1\.0 MB"):
        Free(1_000_000).headroom(20_480_000 + 2048).chunk(0, 2048)


def test_chunks_take_no_more_than_computing_may() -> None:
    """However much is free: what computing does not get, the pool has."""
    cost = EstimatedCost(token_bytes=0, key_bytes=0, pair_bytes=2)  # 3 bytes of a pair with the margin

    def tokens(position: int, limit_bytes: int, wanted: int = 2048) -> int:
        return Headroom(limit_bytes, free=lambda: 1 << 60, cost=cost).chunk(position, wanted)

    limit = cost.of(512, 100_000)
    assert tokens(100_000, limit) == tokens(80_000, limit) == 512
    assert tokens(200_000, limit) == 256 and tokens(10_000, limit) == 2048
    assert tokens(1_000_000, limit) == 128, "and no fewer"
    assert tokens(1_000_000, limit, wanted=40) == 40


def test_the_pool_gives_back_before_chunks_shrink() -> None:
    free = Free(1000, pool=2000)
    assert free.headroom(2048).chunk(0, 2048) == 2048
    assert free.asked == [1048]
    assert free.headroom(2048).chunk(0, 2048) == 2048
    assert len(free.asked) == 1, "nobody is asked where there is enough"


def test_the_pool_gives_back_for_a_smaller_chunk_what_it_cannot_for_a_large_one() -> None:
    free = Free(0, pool=700)
    assert free.headroom(2048).chunk(0, 2048) == 512
    assert free.asked == [2048, 1024, 512]


def failing(model: LoadedModel, monkeypatch: pytest.MonkeyPatch, times: int, prompt: list[int]) -> list[int]:
    """So many chunks of a prompt find no memory; the tokens of all its chunks."""
    chunks: list[int] = []
    advance, begin_chunk = PrefillChunk.advance, model.engine._next_chunk

    def made(job: TurnJob) -> PrefillChunk:
        chunk = begin_chunk(job)
        if job.sequence == prompt:
            chunks.append(chunk.tokens)
            chunk.fails = len(chunks) <= times  # type: ignore[attr-defined]
        return chunk

    def advanced(self: Any, stop: Callable[[], bool]) -> bool:
        if getattr(self, "fails", False):
            raise RuntimeError(str(CUDA))
        return advance(self, stop)

    monkeypatch.setattr(model.engine, "_next_chunk", made)
    monkeypatch.setattr(PrefillChunk, "advance", advanced)
    return chunks


@pytest.mark.slow
def test_a_prompt_without_memory_begins_again_in_small_chunks(
    model: LoadedModel, oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = prompt_of(model, 7, 60)
    assert len(prompt) > 600
    chunks = failing(model, monkeypatch, 1, prompt)
    other, turn = begin(model, prompt_of(model, 0, 2), 30), begin(model, prompt, 5)
    run(model)
    assert chunks[0] > 256 and max(chunks[1:]) == 256
    assert right(oracle, turn) and right(oracle, other)


@pytest.mark.slow
def test_one_that_finds_none_again_fails_alone(
    model: LoadedModel, oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = prompt_of(model, 7, 60)
    failing(model, monkeypatch, 2, prompt)
    monkeypatch.setattr(model.engine, "headroom", Free(3 * MIB).headroom(MIB))
    other, turn = begin(model, prompt_of(model, 0, 2), 30), begin(model, prompt, 5)
    run(model)
    with pytest.raises(ResourceExhausted, match=r"the request needed about 1\.0 MB at once, and 3\.1 MB are free"):
        turn.job.future.result(0)
    assert turn.job.kv is None
    assert right(oracle, other)
    later = begin(model, prompt, 5)
    run(model)
    assert right(oracle, later)


def test_a_start_without_memory_is_tried_again(model: LoadedModel, oracle: Oracle) -> None:
    make, failed = new_kv(model, 100), []

    def no_memory(times: int) -> Sequence:
        failed.append(times)
        if len(failed) <= times:
            raise RuntimeError(str(CUDA))
        return make()

    turn = begin(model, prompt_of(model, 0, 2), 5, make=partial(no_memory, 1))
    run(model)
    assert right(oracle, turn) and turn.whole
    failed.clear()
    turn = begin(model, prompt_of(model, 0, 2), 5, make=partial(no_memory, 5))
    run(model)
    with pytest.raises(ResourceExhausted, match="the request needed about"):
        turn.job.future.result(0)


@pytest.mark.slow
@pytest.mark.parametrize("fit", [0, 1, 2])
def test_restored_kv_for_whose_arrays_there_is_no_memory_stays_in_blocks(
    model: LoadedModel, oracle: Oracle, monkeypatch: pytest.MonkeyPatch, fit: int
) -> None:
    prompt = prompt_of(model, 3, 20)
    past = begin(model, prompt[:-1], None)
    run(model)
    each = model.arenas.start_bytes(len(prompt) - 1)
    free = Free(fit * each)
    monkeypatch.setattr(model.engine, "headroom", free.headroom(0))
    turns = [begin(model, prompt, 5, warm=past.kv) for _ in range(2)]
    model.engine.step()
    assert [turn.job.kv is not None and turn.job.kv.arrays for turn in turns] == [fit > 0, fit > 1]
    assert free.asked == [[each, 2 * each - fit * each], [each], []][fit]
    run(model)
    assert all(right(oracle, turn) and turn.whole and not turn.job.alone for turn in turns)


@pytest.mark.slow("gemma3-3")
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_turns_whose_arrays_cannot_grow_go_on_in_blocks(
    model: LoadedModel, oracle: Oracle, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    turns = [begin(model, [5 + n] * (230 + n), 60) for n in range(3)]
    until_told(model, turns, 2)
    kv = turns[0].job.kv
    assert kv is not None
    arrays = sum(int(array.nbytes) for layer in kv.working.values() for array in layer.state)
    free = Free(rows * arrays)
    monkeypatch.setattr(model.engine, "headroom", free.headroom(0))
    until_told(model, turns, 40)
    assert sum(turn.job.kv is not None and turn.job.kv.arrays for turn in turns) == rows
    run(model)
    assert all(turn.generated.sampled == 60 and right(oracle, turn) and turn.whole for turn in turns)
    assert not any(turn.job.alone for turn in turns)
    assert bool(free.asked) == (rows < 3)


def test_a_start_in_blocks_alone_needs_nothing_more(
    model: LoadedModel, oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = prompt_of(model, 3, 4)
    past = begin(model, prompt[:-1], None)
    run(model)
    free = Free(0)
    monkeypatch.setattr(model.engine, "headroom", free.headroom(0))
    turn = begin(model, prompt, 5, warm=past.kv, arrays=False)
    run(model)
    assert right(oracle, turn) and turn.whole and not free.asked


CHILD = """
import resource, sys
from pathlib import Path
from agentmem.errors import ResourceExhausted
from benchmarks.loading import load
from inference_service.engine.headroom import Headroom
from inference_service.models.fingerprint import ContentHashes
from benchmarks.models import DEMO
from tests.inference_service.engine.batch_turns import begin, prompt_of, run

model = load("demo", str(DEMO), hashes=ContentHashes(Path(sys.argv[1])), dtype="float32", pool_bytes=1 << 24,
             batch_bytes=1 << 27, calibration_tokens=256)
begin(model, prompt_of(model, 0, 30), 20)
run(model)
PEAK = 256 << 20  # of 2,048 tokens behind as many: scores of all heads
limit = resource.getrlimit(resource.RLIMIT_DATA)
held = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_DATA, (held + (96 << 20), limit[1]))
def left():
    return held + (96 << 20) - int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
model.engine.headroom = Headroom(PEAK, free=left)
long, short = begin(model, [5] * 3000, 3), begin(model, prompt_of(model, 1, 2), 5)
hog = bytearray(80 << 20)
run(model)
assert len(short.events) == 5
try:
    print("long", long.generated.sampled)
except ResourceExhausted as error:
    print(error)
del hog
resource.setrlimit(resource.RLIMIT_DATA, limit)
model.engine.headroom = Headroom()
later = begin(model, [5] * 1000, 3)
run(model)
print("later", later.generated.sampled)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits on memory are Linux's")
def test_a_limit_on_memory_ends_the_turn_that_exceeds_it_and_no_other(tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", CHILD, str(tmp_path / "hashes.json")]
    ran = subprocess.run(arguments, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    long, later = ran.stdout.splitlines()
    assert "the device's memory is taken" in long and "are free" in long
    assert later == "later 3", "the process goes on"
