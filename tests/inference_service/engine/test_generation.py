"""The engine against the oracle."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from inference_service.domain import Sampling
from inference_service.engine import prompts
from inference_service.engine.paged.sequence import Sequence
from inference_service.engine.quantization import ROTATED
from inference_service.models.loaded import LoadedModel
from tests.inference_service.directories import written_by
from tests.inference_service.engine.batch_turns import (
    EXACT,
    Turn,
    begin,
    difference,
    differing,
    new_kv,
    packed,
    run,
)
from tests.inference_service.engine.paged.bits import as_file
from tests.oracle import Oracle
from tests.tiny_hybrids import write_baichuan_m1, write_falcon_h1, write_qwen3_next
from tests.tiny_models import write_deepseek2, write_gpt_oss, write_llama
from tests.tiny_own_attention import write_deepseek32, write_gemma2, write_kimi_linear, write_llama4
from tests.tiny_states import write_recurrent_gemma

pytestmark = pytest.mark.sampled(6)

TOLERANCE = 1e-3


directory = written_by([
    write_llama, write_gpt_oss, write_deepseek2, write_qwen3_next, write_falcon_h1, write_baichuan_m1, write_gemma2,
    write_kimi_linear, write_llama4, write_deepseek32, write_recurrent_gemma,
])  # fmt: skip


@pytest.fixture
def prompt(model: LoadedModel) -> list[int]:
    """Latents are multiplied in another order in chunks: in this text no code is at the edge of two."""
    dice = random.Random(6 if model.geometry.format.scheme == ROTATED else 5)
    text = dice.choices(["boat", " green", " house", "the sea ", "nobody knows", "\n", "ü€😀"], k=100)
    return model.tokenizer.encode("".join(text), parse_special=False)


def turn(
    model: LoadedModel,
    sequence: list[int],
    tokens: int | None = 24,
    sampling: Sampling = EXACT,
    warm: Sequence | None = None,
    **options: Any,
) -> Turn:
    begun = begin(model, sequence, tokens, sampling, warm, **options)
    run(model)
    assert begun.whole and not begun.job.alone
    return begun


def test_turn_equals_recomputation(model: LoadedModel, oracle: Oracle, prompt: list[int]) -> None:
    done = turn(model, prompt)
    assert len(set(done.said)) >= 8, "an output that does not vary proves nothing"
    assert difference(oracle, done) < TOLERANCE


def test_beginning_is_load_and_neither_prefill_nor_decode(model: LoadedModel, prompt: list[int]) -> None:
    told: list[tuple[float, float, int]] = []
    pause = threading.Event()
    make = new_kv(model, len(prompt) + 3)

    def slow() -> Sequence:
        pause.wait(0.3)
        return make()

    begun = begin(model, prompt, 2, make=slow)
    begun.job.on_start = lambda *times: told.append(times)
    began = time.monotonic()
    run(model)
    whole = time.monotonic() - began
    [(_, loaded, reused)] = told
    assert loaded >= 0.3 and reused == 0
    assert loaded + begun.generated.prefill_seconds + begun.generated.decode_seconds <= whole


@pytest.mark.slow("gemma2-1", "llama4-100", "recurrent_gemma-1", "llama4-1", "deepseek32-1", "kimi_linear-1")
@pytest.mark.parametrize("chunk", [1, 100])
def test_chunks_do_not_matter(
    model: LoadedModel, oracle: Oracle, prompt: list[int], chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompts, "chunk_tokens", lambda *_: chunk)
    assert difference(oracle, turn(model, prompt)) < TOLERANCE


def restored(model: LoadedModel, kv: Sequence, tokens: int) -> Callable[[], Sequence]:
    """Return a beginning that continues it: half of the blocks from the pool, others and a checkpoint from files."""
    store, geometry, length = model.arenas, model.geometry, kv.length
    begins, checkpoint = new_kv(model, tokens, kv), store.checkpoints.capture(kv, last=True)
    half, blocks = length // 512, begins.room.blocks
    files = [
        (own, as_file(store.read_block(block, count := min(256, length - 256 * at))(), geometry.block_shapes(count)))
        for at, (block, own) in enumerate(zip(kv.full.blocks[: -(-length // 256)], blocks, strict=False))
        if at >= half
    ]
    window = None
    if checkpoint is not None:
        window = as_file(store.checkpoints.read(checkpoint)(), geometry.checkpoint_shapes(checkpoint.tokens))
    begins.start = replace(
        begins.start,
        blocks=[*kv.full.blocks[:half], *blocks[half:]],
        shared=256 * half,
        cut=None,
        files=files,
        checkpoint=None,
        window_file=window,
    )
    return begins


def conversation(
    model: LoadedModel,
    prompt: list[int],
    goes_on: Callable[[LoadedModel, Sequence, int], Callable[[], Sequence]] = lambda model, kv, n: new_kv(model, n, kv),
) -> Iterator[Turn]:
    """Five turns, each on the KV of the turn before."""
    done = turn(model, prompt, 12)
    yield done
    for number in range(4):
        more = model.tokenizer.encode(f" and turn {number} 😀 house", parse_special=False)
        sequence = [*done.job.sequence, *done.generated.token_ids, *more]
        done = turn(model, sequence, 12, make=goes_on(model, done.kv, len(sequence) + 13))
        assert done.job.chunks[0].position == len(sequence) - len(more)
        yield done


@pytest.mark.slow
def test_restored_equals_hot_equals_recomputed(model: LoadedModel, oracle: Oracle, prompt: list[int]) -> None:
    hot = list(conversation(model, prompt))
    warm = list(conversation(model, prompt, goes_on=restored))
    for one, other in zip(hot, warm, strict=True):
        assert one.job.sequence == other.job.sequence
        assert difference(oracle, one) < TOLERANCE
        assert difference(oracle, other) < TOLERANCE
    assert differing(packed(model, hot[-1].kv), packed(model, warm[-1].kv)) == 0, "packed KV differs"


@pytest.mark.slow("gpt_oss")
def test_trimmed_equals_recomputed(
    model: LoadedModel, oracle: Oracle, prompt: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompts, "chunk_tokens", lambda *_: 256)
    prompt, geometry = prompt * 2, model.geometry  # Windows slide.
    done = turn(model, prompt)
    kv, before = done.kv, packed(model, done.kv)
    more = model.tokenizer.encode("something else entirely", parse_special=False)
    whole = [*prompt, *done.generated.token_ids]
    for tokens in (len(prompt) - 60, 100):
        kv.trim(tokens)
        assert kv.length == tokens
        kept = packed(model, kv, of_full=True)
        assert all(np.array_equal(each, before[name][:, :, :tokens]) for name, each in kept.items())
        if kv.lost:
            assert model.arenas.capture(kv) is None
            continue
        assert geometry.states is None
        other = [*whole[:tokens], *more]
        assert difference(oracle, turn(model, other, warm=kv)) < TOLERANCE
    assert kv.lost == (not geometry.resumes_anywhere), "a window reaches back no further than it slid"
