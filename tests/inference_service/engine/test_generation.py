"""The engine against the oracle, and the same comparisons with faults that must be found."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from agentmem.errors import Cancelled
from agentmem.v1 import types_pb2
from inference_service.domain import Sampling, TokenEvent
from inference_service.engine import prompts
from inference_service.engine.arenas import Arenas
from inference_service.engine.caches import QuantizedKVCache, SlidingQuantizedKVCache
from inference_service.engine.caches.states import StateCache
from inference_service.engine.caches.views import View
from inference_service.engine.checkpoints import space_of, tensors_of, window_tensors
from inference_service.engine.generation import CacheLengthError, Decoding, Generated, TurnJob, trim_to
from inference_service.engine.geometry import Caches, TensorShapes
from inference_service.models.loaded import LoadedModel
from tests.oracle import Oracle
from tests.tiny_hybrids import write_baichuan_m1, write_falcon_h1, write_qwen3_next
from tests.tiny_models import write_deepseek2, write_gpt_oss, write_llama
from tests.tiny_own_attention import write_deepseek32, write_gemma2, write_kimi_linear, write_llama4
from tests.tiny_states import write_recurrent_gemma

pytestmark = pytest.mark.sampled(6)

TOLERANCE = 1e-3


@pytest.fixture(
    scope="module",
    params=[
        write_llama,
        write_gpt_oss,
        write_deepseek2,
        write_qwen3_next,
        write_falcon_h1,
        write_baichuan_m1,
        write_gemma2,
        write_kimi_linear,
        write_llama4,
        write_deepseek32,
        write_recurrent_gemma,
    ],
    ids=lambda write: write.__name__.removeprefix("write_"),
)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return request.param(tmp_path_factory.mktemp("model"))


@pytest.fixture
def prompt(model: LoadedModel) -> list[int]:
    text = random.Random(5).choices(["boat", " green", " house", "the sea ", "nobody knows", "\n", "ü€😀"], k=100)
    return model.tokenizer.encode("".join(text), parse_special=False)


def turn(
    model: LoadedModel,
    caches: Caches,
    sequence: list[int],
    tokens: int = 24,
    stop: tuple[str, ...] = (),
    sampling: Sampling = Sampling(ignore_eos=True),  # noqa: B008 - frozen
) -> tuple[Generated, list[TokenEvent]]:
    events: list[TokenEvent] = []
    decoding = Decoding(tokens, sampling=sampling, stop=stop, top_logprobs=0)
    return finished(model, TurnJob(sequence, lambda: caches, decoding, events.append, threading.Event())), events


def finished(model: LoadedModel, job: TurnJob) -> Generated:
    """Tick until the turn is over; its caches are in the list that it was given."""
    model.engine.add(job)
    while model.engine.step():
        pass
    caches, generated = job.future.result(0)
    assert caches is job.caches
    return generated


def difference(oracle: Oracle, sequence: list[int], events: list[TokenEvent]) -> float:
    """Largest difference between the engine's log-probabilities and the oracle's."""
    wanted = oracle.logprobs_of([*sequence, *(e.token_id for e in events)], len(sequence))
    return float(np.abs(wanted - np.array([e.logprob for e in events])).max())


def test_turn_equals_recomputation(model: LoadedModel, oracle: Oracle, prompt: list[int]) -> None:
    result, events = turn(model, model.new_caches(), prompt)
    assert len(set(result.token_ids)) >= 8, "an output that does not vary proves nothing"
    assert difference(oracle, prompt, events) < TOLERANCE


def test_assembling_caches_is_load_and_neither_prefill_nor_decode(model: LoadedModel, prompt: list[int]) -> None:
    told: list[tuple[float, float, int]] = []
    pause = threading.Event()

    def slow() -> Caches:
        pause.wait(0.3)
        return model.new_caches()

    job = TurnJob(
        prompt, slow, Decoding(2), lambda _: None, threading.Event(), on_start=lambda *times: told.append(times)
    )
    began = time.monotonic()
    generated = finished(model, job)
    whole = time.monotonic() - began
    [(_, loaded, reused)] = told
    assert loaded >= 0.3 and reused == 0
    assert loaded + generated.prefill_seconds + generated.decode_seconds <= whole


@pytest.mark.slow("gemma2-1", "llama4-100", "recurrent_gemma-1", "llama4-1")
@pytest.mark.parametrize("chunk", [1, 100])
def test_chunks_do_not_matter(
    model: LoadedModel, oracle: Oracle, prompt: list[int], chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompts, "chunk_tokens", lambda *_: chunk)
    _, events = turn(model, model.new_caches(), prompt)
    assert difference(oracle, prompt, events) < TOLERANCE


def restored(model: LoadedModel, caches: Caches, tokens: int) -> Caches:
    """Through an arena, the tensors of files, and back: half of the blocks from the arena, the others from files."""
    geometry, arenas = model.geometry, Arenas(model.geometry, 9, 7, model.codecs)
    blocks, checkpoint = [7, 2, 5, 0, 3, 8][: -(-tokens // 256)], None
    filled, count = space_of(caches, geometry)
    assert geometry.sliding is None or filled <= geometry.window + 256
    pieces = [4, 0, 6, 2, 5][:count]
    arenas.write(caches, 0, blocks, pieces)
    if pieces:
        file = host(arenas.read(pieces, filled), geometry.checkpoint_shapes(filled))
        checkpoint = arenas.checkpoint(pieces, filled, tokens)
        from_file = arenas.uploaded(file, 0, tokens)
        assert tensors_of(checkpoint, geometry.states) == tensors_of(from_file, geometry.states)
    counts = [min(256, tokens - 256 * i) for i in range(len(blocks))]
    half = len(blocks) // 2
    files = [
        host(arenas.read_block(block, count), geometry.block_shapes(count))
        for block, count in list(zip(blocks, counts, strict=True))[half:]
    ]
    return arenas.caches(tokens, blocks[:half], files, checkpoint)


def host(copies: dict[str, bytes], shapes: TensorShapes) -> dict[str, np.ndarray]:
    return {
        name: np.frombuffer(copies[name], np.uint32 if dtype == "U32" else np.float32).reshape(shape)
        for name, (dtype, shape) in shapes.items()
    }


def bits(model: LoadedModel, caches: Caches) -> dict[str, bytes]:
    """The full-attention layers' packed KV."""
    return window_tensors([caches[layer].buffers for layer in model.geometry.full.layers])


def conversation(
    model: LoadedModel, prompt: list[int], between: Callable[[Caches, int], Caches]
) -> Iterator[tuple[list[int], list[TokenEvent], Caches]]:
    """Five turns, each on the caches that `between` makes of those of the turn before."""
    sequence, caches = list(prompt), model.new_caches()
    for number in range(5):
        result, events = turn(model, caches, sequence, tokens=12)
        yield sequence, events, caches
        sequence = [*sequence, *result.token_ids]
        trim_to(caches, len(sequence))
        caches = between(caches, len(sequence))
        sequence += model.tokenizer.encode(f" and turn {number} 😀 house", parse_special=False)


@pytest.mark.slow
def test_restored_equals_hot_equals_recomputed(model: LoadedModel, oracle: Oracle, prompt: list[int]) -> None:
    hot = list(conversation(model, prompt, lambda caches, _: caches))
    warm = list(conversation(model, prompt, lambda caches, tokens: restored(model, caches, tokens)))
    for (sequence, events, _), (other_sequence, other_events, _) in zip(hot, warm, strict=True):
        assert sequence == other_sequence
        assert difference(oracle, sequence, events) < TOLERANCE
        assert difference(oracle, sequence, other_events) < TOLERANCE
    assert bits(model, hot[-1][2]) == bits(model, warm[-1][2]), "packed KV differs"


def with_kv(caches: Caches) -> list[QuantizedKVCache | SlidingQuantizedKVCache]:
    return [cache for cache in caches if not isinstance(cache, StateCache)]


def shift_rope(caches: Caches, tokens: int) -> Caches:
    """Every later token is one position too far: what is before it moved by one."""
    for cache in with_kv(caches):
        end = cache.buffers.filled
        cache.buffers = cache.buffers.map(
            lambda part, end=end: part.between(0, 1).followed_by(part.between(0, end - 1)), end
        )
    return caches


def swap_layers(caches: Caches, tokens: int) -> Caches:
    """The caches of two layers of one kind change places."""
    kinds = [type(cache) for cache in caches]
    kind = next(each for each in reversed(kinds) if kinds.count(each) > 1)
    first, second = [i for i, each in enumerate(kinds) if each is kind][-2:]
    caches[first], caches[second] = caches[second], caches[first]
    return caches


def stale_tail(caches: Caches, tokens: int) -> Caches:
    """The last 16 tokens are those of an older state."""
    for cache in with_kv(caches):
        end = cache.buffers.filled
        cache.buffers = cache.buffers.map(
            lambda part, end=end: part.between(0, end - 16).followed_by(part.between(end - 32, end - 16)), end
        )
    return caches


@pytest.mark.slow("gpt_oss-swap_layers", "kimi_linear-shift_rope", "llama4-swap_layers", "qwen3_next-swap_layers")
@pytest.mark.parametrize("fault", [shift_rope, swap_layers, stale_tail])
def test_injected_faults_are_found(
    model: LoadedModel, oracle: Oracle, prompt: list[int], fault: Callable[[Caches, int], Caches]
) -> None:
    turns = islice(conversation(model, prompt, fault), 1, None)
    assert any(difference(oracle, sequence, events) > 10 * TOLERANCE for sequence, events, _ in turns)


def test_missing_mask_is_found(
    model: LoadedModel, oracle: Oracle, prompt: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in (QuantizedKVCache, SlidingQuantizedKVCache, View):

        def all_seen(cache: Any, n: int, *args: Any, masked: Any = kind.make_mask, **kwargs: Any) -> mx.array | None:
            mask = masked(cache, n, *args, **kwargs)
            if isinstance(mask, str):
                return mx.ones((n, cache.offset + n), mx.bool_)
            return None if mask is None else mx.ones_like(mask)

        monkeypatch.setattr(kind, "make_mask", all_seen)
    _, events = turn(model, model.new_caches(), prompt)
    assert difference(oracle, prompt, events) > 10 * TOLERANCE


@pytest.mark.slow("gpt_oss")
def test_trimmed_equals_recomputed(
    model: LoadedModel, oracle: Oracle, prompt: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a recurrent state, or a window before, is gone, nothing goes on from there; full layers' KV stays."""
    monkeypatch.setattr(prompts, "chunk_tokens", lambda *_: 256)  # where sliding layers drop tokens depends on chunks
    caches = model.new_caches()
    result, _ = turn(model, caches, prompt)
    geometry = model.geometry
    kept = [*prompt, *result.token_ids][: len(prompt) - 60 if geometry.states is None else 100]
    trim_to(caches, len(kept))
    other = [*kept, *model.tokenizer.encode("something else entirely", parse_special=False)]
    if geometry.states is None:
        _, events = turn(model, caches, other)
        assert difference(oracle, other, events) < TOLERANCE
        trim_to(caches, 100)
    assert {cache.buffers.filled for cache in caches if isinstance(cache, QuantizedKVCache)} <= {100}
    if geometry.states is None and space_of(caches, geometry)[1]:  # the windows reach back as far
        _, events = turn(model, caches, [*kept[:100], *other[len(kept) :]])
        assert difference(oracle, [*kept[:100], *other[len(kept) :]], events) < TOLERANCE
    elif not geometry.resumes_anywhere:
        assert space_of(caches, geometry) == (0, 0)
        with pytest.raises(CacheLengthError, match="checkpoint"):
            turn(model, caches, other)


@pytest.mark.slow("llama4")
def test_the_caches_hold_exactly_what_the_ledger_will(model: LoadedModel, prompt: list[int]) -> None:
    caches = model.new_caches()
    result, _ = turn(model, caches, prompt, tokens=5)
    assert {cache.offset for cache in caches} == {len(prompt) + len(result.token_ids)}
    stopped = model.new_caches()
    free, events = turn(model, model.new_caches(), prompt, tokens=20)
    stop = next(event.text for event in events[5:] if event.text.strip() and "\ufffd" not in event.text)
    result, _ = turn(model, stopped, prompt, tokens=20, stop=(stop,))
    assert len(result.token_ids) < len(free.token_ids)
    assert {cache.offset for cache in stopped} == {len(prompt) + len(result.token_ids)}, "cut off here too"


def test_layers_of_different_length_are_refused(model: LoadedModel, prompt: list[int]) -> None:
    caches = model.new_caches()
    turn(model, caches, prompt, tokens=2)
    caches[1].trim(1)  # of layers of either kind
    with pytest.raises(CacheLengthError):
        trim_to(caches, len(prompt))
    with pytest.raises(CacheLengthError):
        turn(model, caches, [*prompt, 5, 6, 7])


def test_cancelled_within_one_step(model: LoadedModel, prompt: list[int]) -> None:
    cancelled = threading.Event()
    events: list[TokenEvent] = []

    def emit(event: TokenEvent) -> None:
        events.append(event)
        if len(events) == 3:
            cancelled.set()

    caches = model.new_caches()
    with pytest.raises(Cancelled):
        finished(model, TurnJob(prompt, lambda: caches, Decoding(1000), emit, cancelled))
    assert len(events) == 3
    assert model.engine.running == 0
    assert not caches, "what was computed is dropped whole"


def test_cancelled_within_one_chunk(model: LoadedModel, prompt: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled = threading.Event()
    chunks = []

    def chunk(position: int, *_: float) -> int:
        chunks.append(position)
        cancelled.set()
        return 50

    monkeypatch.setattr(prompts, "chunk_tokens", chunk)
    caches = model.new_caches()
    with pytest.raises(Cancelled):
        finished(model, TurnJob(prompt, lambda: caches, Decoding(1000), lambda _: None, cancelled))
    assert chunks == [0]
    assert not caches


@pytest.mark.slow
def test_stop_string_across_tokens_is_cut_off(model: LoadedModel, prompt: list[int]) -> None:
    free, events = turn(model, model.new_caches(), prompt, tokens=60)
    texts = [event.text for event in events]
    text = "".join(texts) + free.rest.text
    boundaries = [sum(map(len, texts[:n])) for n in range(10, len(texts))]
    stop = next(s for at in boundaries if (s := text[at - 1 : at + 1]).isascii() and len(s) == 2)
    result, events = turn(model, model.new_caches(), prompt, tokens=60, stop=(stop,))
    assert (result.reason, result.stop_string) == (types_pb2.FINISH_REASON_STOP_STRING, stop)
    assert "".join(event.text for event in events) + result.rest.text == text[: text.index(stop)]
    assert result.token_ids == free.token_ids[: len(result.token_ids)]
    visible = b"".join(map(model.tokenizer.token_bytes, result.token_ids))
    assert stop.encode() not in visible
    following = model.tokenizer.token_bytes(free.token_ids[len(result.token_ids)])
    assert stop[:1].encode() in following, "the first token that was cut off holds the beginning of the stop string"


def test_prefill_alone_holds_the_whole_sequence(model: LoadedModel, prompt: list[int]) -> None:
    caches = model.new_caches()
    result = finished(model, TurnJob(prompt, lambda: caches, None, lambda _: None, threading.Event()))
    assert (result.token_ids, result.reason) == ([], types_pb2.FINISH_REASON_PREFILLED)
    assert {cache.offset for cache in caches} == {len(prompt)}


@pytest.mark.slow("falcon_h1", "qwen3_next")
def test_seed_makes_sampling_reproducible(model: LoadedModel, prompt: list[int]) -> None:
    def sample(seed: int) -> list[int]:
        sampling = Sampling(temperature=1.0, top_p=0.95, top_k=50, min_p=0.001, seed=seed, ignore_eos=True)
        return turn(model, model.new_caches(), prompt, sampling=sampling)[0].token_ids

    assert sample(1) == sample(1)
    assert sample(1) != sample(2)


def test_a_tiny_temperature_is_greedy(model: LoadedModel, prompt: list[int]) -> None:
    greedy, _ = turn(model, model.new_caches(), prompt, tokens=6)
    for temperature in (1e-45, 1e-30, 1e-6):
        sampling = Sampling(temperature=temperature, seed=3, ignore_eos=True)
        assert turn(model, model.new_caches(), prompt, tokens=6, sampling=sampling)[0].token_ids == greedy.token_ids
