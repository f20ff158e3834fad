"""Short prompts that are computed in one batch: each is right, whatever becomes of the others."""

import weakref
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from inference_service.engine.batched_prefill import padded_caches

from agentmem.errors import Cancelled
from inference_service.engine import batched_prefill
from inference_service.engine import prompts as prompts_module
from inference_service.engine.geometry import Caches
from inference_service.engine.headroom import Headroom
from inference_service.engine.prefill import PrefillChunk
from inference_service.engine.prompt_blocks import PromptBlocks
from inference_service.models.loaded import LoadedModel
from tests.inference_service.engine.batch_turns import begin, prompt_of, right, run
from tests.oracle import Oracle
from tests.tiny_models import write_deepseek2, write_llama

pytestmark = pytest.mark.sampled(2)

LENGTHS = (2, 40, 45, 47, 60)


@pytest.fixture(scope="module", params=[write_llama, write_deepseek2], ids=["llama", "latents"])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = request.param(tmp_path_factory.mktemp("model"))
    return made


@pytest.fixture
def chunks(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each chunk that is begun."""
    rows: list[int] = []
    original = PrefillChunk.__init__

    def begun(self: PrefillChunk, model: Any, caches: Any, those: Any, *others: Any, **named: Any) -> None:
        rows.append(len(those))
        original(self, model, caches, those, *others, **named)

    monkeypatch.setattr(PrefillChunk, "__init__", begun)
    return rows


def prompts(model: LoadedModel, *lengths: int) -> list[list[int]]:
    return [prompt_of(model, number, 20)[:length] for number, length in enumerate(lengths)]


def test_prompts_that_wait_together_are_computed_together(
    model: LoadedModel, oracle: Oracle, chunks: list[int]
) -> None:
    turns = [begin(model, prompt) for prompt in prompts(model, *LENGTHS)]
    run(model)
    assert sorted(chunks) == [1, 4], "a prompt of 2 tokens would be padding for the most part"
    assert all(right(oracle, turn) for turn in turns)
    for turn, length in zip(turns, LENGTHS, strict=True):
        caches, generated = turn.job.future.result(0)
        assert {cache.offset for cache in caches} == {length + len(generated.token_ids)}
        first = turn.job.chunks[0]
        assert (first.position, first.tokens) == (0, length - 1 if length > 2 else 2)
        assert generated.prefill_seconds > 0 and len(turn.events) == 12


def test_packed_kv_is_that_of_the_prompt_alone(model: LoadedModel, chunks: list[int]) -> None:
    """But for codes that rounding moves to the next: padding changes none, and shifts none."""
    those = prompts(model, *LENGTHS[1:])
    together = [begin(model, prompt, 1) for prompt in those]
    run(model)
    alone = []
    for prompt in those:
        alone.append(begin(model, prompt, 1))
        run(model)
    assert chunks[0] == 4 and max(chunks[1:]) == 1
    for one, other in zip(together, alone, strict=True):
        for a, b in zip(one.job.caches, other.job.caches, strict=True):
            tokens = len(one.job.sequence)
            (k, v), (k2, v2) = (cache.codec.decode(*cache.buffers.view()) for cache in (a, b))
            for x, y in ((k, k2), (v, v2)):
                assert float(mx.abs(x - y)[:, :, :tokens].mean().item()) < 1e-3 * float(mx.abs(y).max().item())


@pytest.mark.parametrize("when", ["begun", "under way"])
def test_a_turn_that_is_cancelled_harms_no_other(
    when: str, model: LoadedModel, oracle: Oracle, chunks: list[int]
) -> None:
    gone, *stay = (begin(model, prompt) for prompt in prompts(model, *LENGTHS[1:]))
    model.engine.asked = lambda: True  # A chunk stops after each layer.
    try:
        if when == "under way":
            model.engine.step()
        gone.cancelled.set()
        model.engine.step()
    finally:
        model.engine.asked = lambda: False
    run(model)
    assert isinstance(gone.job.future.exception(0), Cancelled)
    assert all(right(oracle, turn) for turn in stay)


def test_when_all_are_cancelled_the_next_ones_are_computed(
    model: LoadedModel, oracle: Oracle, chunks: list[int]
) -> None:
    turns = [begin(model, prompt) for prompt in prompts(model, *LENGTHS[1:])]
    model.engine.asked = lambda: True
    model.engine.step()
    model.engine.asked = lambda: False
    for turn in turns:
        turn.cancelled.set()
    assert not model.engine.step()
    assert model.engine._batch is None, "its memory is free"
    later = [begin(model, prompt) for prompt in prompts(model, *LENGTHS[1:])]
    run(model)
    assert chunks == [4, 4] and all(right(oracle, turn) for turn in later)


@pytest.mark.parametrize("error", [RuntimeError("a kernel failed"), RuntimeError("[malloc] out of memory")])
def test_a_batch_that_fails_is_computed_one_by_one(
    error: RuntimeError, model: LoadedModel, oracle: Oracle, chunks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    advance, failed = PrefillChunk.advance, []

    def once(self: PrefillChunk, stop: Any) -> bool:
        if not failed:
            failed.append(self)
            raise error
        return advance(self, stop)

    monkeypatch.setattr(PrefillChunk, "advance", once)
    turns = [begin(model, prompt) for prompt in prompts(model, *LENGTHS[1:])]
    run(model)
    assert chunks[0] == 4 and set(chunks[1:]) == {1}
    assert all(right(oracle, turn) for turn in turns)


@pytest.mark.parametrize("error", [ValueError("a layer knows no such mask"), RuntimeError("[malloc] out of memory")])
def test_a_batch_that_cannot_be_begun_is_computed_one_by_one(
    error: Exception, model: LoadedModel, oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    init = PrefillChunk.__init__

    def raises(self: PrefillChunk, model: Any, caches: Any, rows: Any, *others: Any, **named: Any) -> None:
        if len(rows) > 1:
            raise error
        init(self, model, caches, rows, *others, **named)

    monkeypatch.setattr(PrefillChunk, "__init__", raises)
    turns = [begin(model, prompt) for prompt in prompts(model, *LENGTHS[1:])]
    run(model)
    assert all(right(oracle, turn) for turn in turns)
    assert model.engine._batch is None


def test_a_turn_that_cannot_be_started_fails_alone(model: LoadedModel, oracle: Oracle, chunks: list[int]) -> None:
    bad, *others = (begin(model, prompt) for prompt in prompts(model, *LENGTHS[1:]))

    def no_caches() -> Any:
        raise ValueError("there are none")

    bad.job.make_caches = no_caches
    run(model)
    assert "there are none" in str(bad.job.future.exception(0))
    assert chunks == [3] and all(right(oracle, turn) for turn in others)


def test_of_a_batch_that_failed_nothing_is_held_while_memory_is_looked_for(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Any] = []
    monkeypatch.setattr(PrefillChunk, "advance", lambda self, stop: begun.append(weakref.ref(self)) or fail())

    def fail() -> bool:
        raise RuntimeError("[malloc] out of memory")

    def recover() -> None:
        assert begun[0]() is None, "the graph and the caches of the batch are gone"
        begun.append("recovered")
        monkeypatch.undo()

    monkeypatch.setattr(model.engine.headroom, "recover", recover)
    turns = [begin(model, prompt) for prompt in prompts(model, *LENGTHS[1:])]
    run(model)
    assert begun[1] == "recovered"
    assert all(turn.generated.prefill_seconds > 0 for turn in turns)


def test_a_long_prompt_is_computed_alone(model: LoadedModel) -> None:
    """By itself it fills a device, and in a batch it would attend by a path that was not proved."""
    short, long = begin(model, list(range(1, 31)) * 17), begin(model, list(range(1, 31)) * 18)
    assert (short.job.tokens, long.job.tokens) == (510, 540)
    assert batched_prefill.batchable(short.job) and not batched_prefill.batchable(long.job)
    for turn in (short, long):
        turn.cancelled.set()
    run(model)


def test_a_first_token_that_cannot_be_emitted_ends_its_turn_alone(
    model: LoadedModel, oracle: Oracle, chunks: list[int]
) -> None:
    bad, *others = (begin(model, prompt) for prompt in prompts(model, *LENGTHS[1:]))

    def fail(event: object) -> None:
        raise ValueError("nobody listens")

    bad.job.emit = fail
    run(model)
    assert "nobody listens" in str(bad.job.future.exception(0))
    assert chunks == [4] and all(right(oracle, turn) for turn in others)


def test_where_memory_is_short_prompts_are_computed_one_by_one(
    model: LoadedModel, oracle: Oracle, chunks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model.engine, "headroom", Headroom(limit_bytes=2048, free=lambda: 100))
    turns = [begin(model, prompt) for prompt in prompts(model, *LENGTHS[1:])]
    run(model)
    assert set(chunks) == {1}
    assert all(right(oracle, turn) for turn in turns)


@pytest.fixture
def memories(model: LoadedModel) -> list[tuple[list[int], Caches]]:
    """What four agents were told, of different lengths, and the KV of it."""
    texts = prompts(model, 300, 310, 330, 345)
    turns = [begin(model, text, None) for text in texts]
    run(model)
    return [(text, turn.job.future.result(0)[0]) for text, turn in zip(texts, turns, strict=True)]


@pytest.mark.slow
def test_next_turns_that_wait_together_are_computed_together(
    model: LoadedModel, oracle: Oracle, memories: list[tuple[list[int], Caches]], chunks: list[int]
) -> None:
    new = (40, 30, 37, 33)
    later = [prompt_of(model, 7 + number, 5)[:length] for number, length in enumerate(new)]
    turns = [begin(model, [*text, *more], warm=caches) for (text, caches), more in zip(memories, later, strict=True)]
    run(model)
    assert chunks == [4] and all(right(oracle, turn) for turn in turns)
    for turn, (text, _), length in zip(turns, memories, new, strict=True):
        [chunk] = turn.job.chunks
        assert (chunk.position, chunk.tokens) == (len(text), length - 1), "what is computed again is not counted"
        caches, generated = turn.job.future.result(0)
        assert {cache.offset for cache in caches} == {len(text) + length + len(generated.token_ids)}


def test_kv_that_is_computed_again_is_what_it_was(
    model: LoadedModel, memories: list[tuple[list[int], Caches]], chunks: list[int]
) -> None:
    """The second one computes 10 tokens of its KV again: all of it is that of the turn alone, but for rounding."""
    (first, of_first), (second, of_second) = memories[:2]
    kept = [[array[...] for array in cache.buffers.arrays] for cache in of_second]
    mx.eval(kept)
    more = prompt_of(model, 9, 5)
    begin(model, [*first, *more[:40]], 1, warm=of_first)
    together = begin(model, [*second, *more[:30]], 1, warm=of_second)
    run(model)
    assert chunks == [2]
    for cache, before in zip(together.job.caches, kept, strict=True):
        untouched = len(second) - 10
        for array, old in zip(cache.buffers.arrays, before, strict=True):
            assert mx.array_equal(array[:, :, :untouched], old[:, :, :untouched])
    alone = begin(model, [*second, *more[:30]], 1)
    run(model)
    for a, b in zip(together.job.caches, alone.job.caches, strict=True):
        for x, y in zip(a.codec.decode(*a.buffers.view()), b.codec.decode(*b.buffers.view()), strict=True):
            assert float(mx.abs(x - y).mean().item()) < 1e-2 * float(mx.abs(y).max().item())


def test_cold_prompts_and_next_turns_are_not_mixed(
    model: LoadedModel, oracle: Oracle, memories: list[tuple[list[int], Caches]], chunks: list[int]
) -> None:
    text, caches = memories[0]
    warm = begin(model, [*text, *prompt_of(model, 7, 5)[:40]], warm=caches)
    cold = [begin(model, prompt) for prompt in prompts(model, 38, 42)]
    run(model)
    assert sorted(chunks) == [1, 2] and all(right(oracle, turn) for turn in (warm, *cold))


def test_next_turns_whose_batch_fails_are_right(
    model: LoadedModel,
    oracle: Oracle,
    memories: list[tuple[list[int], Caches]],
    chunks: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    advance, failed = PrefillChunk.advance, []

    def once(self: PrefillChunk, stop: Any) -> bool:
        if not failed:
            failed.append(self)
            raise RuntimeError("a kernel failed")
        return advance(self, stop)

    monkeypatch.setattr(PrefillChunk, "advance", once)
    more = prompt_of(model, 7, 5)[:40]
    turns = [begin(model, [*text, *more], warm=caches) for text, caches in memories]
    run(model)
    assert chunks[0] == 4 and set(chunks[1:]) == {1} and all(right(oracle, turn) for turn in turns)


@pytest.mark.parametrize("error", [ValueError("there are none"), RuntimeError("[malloc] out of memory")])
def test_one_that_cannot_be_started_is_none_of_the_others_business(
    error: Exception,
    model: LoadedModel,
    oracle: Oracle,
    memories: list[tuple[list[int], Caches]],
    chunks: list[int],
) -> None:
    """For want of memory it is begun again from its tokens; its caches are made once."""
    more = prompt_of(model, 7, 5)[:40]
    *others, bad = (begin(model, [*text, *more], warm=caches) for text, caches in memories)
    asked: list[None] = []

    def no_caches() -> Any:
        asked.append(None)
        raise error

    bad.job.make_caches = no_caches
    run(model)
    assert chunks[0] == 3 and len(asked) == 1 and all(right(oracle, turn) for turn in others)
    assert {turn.job.chunks[0].position for turn in others} == {300, 310, 330}
    assert not any(turn.job.alone for turn in others)
    if isinstance(error, ValueError):
        assert "there are none" in str(bad.job.future.exception(0))
    else:
        assert right(oracle, bad) and bad.job.chunks[0].position == 0


def test_a_batch_is_begun_only_where_all_it_takes_is_free(
    model: LoadedModel,
    oracle: Oracle,
    memories: list[tuple[list[int], Caches]],
    chunks: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it copies fits, and what it computes fits, but not both; and the pool is not asked for more."""
    more = prompt_of(model, 7, 5)[:40]
    copied = 2 * 4 * 385 * model.engine.token_bytes
    relieved: list[int] = []
    room = Headroom(copied, relieve=relieved.append, free=lambda: copied + copied // 100)
    assert copied // 100 < room.needed(345, 160) < copied
    monkeypatch.setattr(model.engine, "headroom", room)
    turns = [begin(model, [*text, *more], warm=caches) for text, caches in memories]
    model.engine.step()
    assert not relieved and set(chunks) == {1}
    run(model)
    assert all(right(oracle, turn) for turn in turns)


def test_padding_sees_something(model: LoadedModel) -> None:
    """Attention over nothing is NaN on some backends, and so is then what is multiplied by its weight of 0."""
    cache = padded_caches([2, 5], model.new_caches)[0]
    mask = cache.make_mask(5)
    assert mx.all(mx.any(mask, axis=-1)) and mask.shape == (2, 1, 5, 5)
    assert mask[0, 0].tolist() == [[k <= q and (k >= 3 or q < 3) for k in range(5)] for q in range(5)]
    assert mask[1, 0].tolist() == [[k <= q for k in range(5)] for q in range(5)]


def test_prompts_that_begin_with_the_same_block_are_not_computed_together(
    model: LoadedModel, chunks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second looks for the block before it begins, and then finds it in the pool."""
    monkeypatch.setattr(prompts_module, "most_tokens", lambda: 2048)  # A device that would compute both together.
    monkeypatch.setattr(model.engine, "_tokens_per_second", 1e6)
    prompt = list(range(1, 31)) * 10
    turns = [begin(model, prompt, 1) for _ in range(2)]
    looked: list[bool] = []
    for turn in turns:

        def look(job: Any = turn.job) -> None:
            looked.append(job.started)
            job.found(None, 0)

        turn.job.blocks = PromptBlocks((b"the block",), {0: 0}, look=look)
    run(model)
    assert set(chunks) == {1}
    assert looked == [False]
