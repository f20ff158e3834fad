"""Reading with several kinds of KV side by side, on the demo model, against one pass over the same caches."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import reduce
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from benchmarks.demo_model.filler import filler_text
from benchmarks.quality.chats import Chat
from benchmarks.quality.measuring import BASE, Sums, answers, read
from benchmarks.quality.variants import (
    MLX_LM,
    NAMES,
    PLAIN_4,
    PLAIN_4_32,
    ROTATED_4,
    RUNGS,
    WINDOWED,
    NewCaches,
    offered,
    stored_bytes,
    variants,
)
from inference_service.engine import quality
from inference_service.engine.geometry import LayerGroup
from inference_service.models.loaded import LoadedModel

CHUNK = 64


@pytest.fixture(scope="module")
def every(demo: LoadedModel) -> dict[str, NewCaches]:
    assert demo.calibration is not None
    return dict(variants(demo.engine.model, demo.geometry, demo.calibration))


@pytest.fixture(scope="module")
def token_ids(demo: LoadedModel) -> list[int]:
    return demo.tokenizer.encode(filler_text(random.Random(7), 60), parse_special=False)[:300]


def test_all_are_there_in_their_order(demo: LoadedModel, every: dict[str, NewCaches]) -> None:
    assert tuple(every) == offered(demo.geometry) == tuple(name for name in NAMES if name not in WINDOWED)


def test_bits_of_windows_are_for_models_with_windows_and_full_layers(demo: LoadedModel) -> None:
    windows = LayerGroup((7,), 1, 64, 64, window=512)
    both = replace(demo.geometry, sliding=windows)
    assert offered(both) == NAMES
    assert {*WINDOWED} == {*NAMES} - {*offered(demo.geometry)} >= {*quality.ladder(both)} - {*quality.LADDER}
    assert not {*WINDOWED} & {*offered(replace(both, full=replace(both.full, layers=())))}


def test_sums_are_those_of_one_pass(demo: LoadedModel, every: dict[str, NewCaches], token_ids: list[int]) -> None:
    network: Any = demo.engine.model
    parted, _ = read(network, token_ids, {"5/4": every["5/4"]}, CHUNK)
    found = {name: reduce(Sums.plus, parts.values()) for name, parts in parted.items()}
    inputs, wanted = mx.array([token_ids[:-1]]), np.array(token_ids[1:])

    def logprobs(caches: Any) -> np.ndarray[Any, Any]:
        return np.array(nn.log_softmax(network(inputs, caches)[0], axis=-1)).astype(np.float64)

    plain, given = logprobs(network.own_caches()), logprobs(every["5/4"]())
    row = np.arange(len(wanted))
    assert found[BASE].loss == pytest.approx(-plain[row, wanted].sum(), rel=1e-4)
    assert (found[BASE].divergence, found[BASE].same) == (0.0, len(wanted))
    assert found["5/4"].loss == pytest.approx(-given[row, wanted].sum(), rel=1e-3)
    assert found["5/4"].divergence == pytest.approx((np.exp(plain) * (plain - given)).sum(), rel=1e-2)
    assert found["5/4"].same == (plain.argmax(-1) == given.argmax(-1)).sum()


@pytest.mark.slow
def test_more_bits_are_closer(demo: LoadedModel, every: dict[str, NewCaches], token_ids: list[int]) -> None:
    found, _ = read(demo.engine.model, token_ids, every, CHUNK)
    kl = {name: parts[0].divergence for name, parts in found.items()}
    assert kl["4/3"] > kl["4"] > kl["5/4"] > kl["8"] > 0
    assert kl[PLAIN_4] < kl[MLX_LM[4]], "the same codes, with scales of least squared error"
    assert kl[MLX_LM[8]] < kl[MLX_LM[4]] / 10
    assert len({f"{each:.3e}" for each in (kl["4"], kl[ROTATED_4], kl[PLAIN_4], kl[PLAIN_4_32])}) == 4


def test_bytes_are_those_of_the_arrays(demo: LoadedModel, every: dict[str, NewCaches], token_ids: list[int]) -> None:
    _, caches = read(demo.engine.model, token_ids[:80], every, CHUNK)
    group = demo.geometry.full
    elements = len(group.layers) * group.kv_heads * (group.k_dim + group.v_dim)
    half = {name: 8 * stored_bytes(caches[name], demo.geometry, 2) / elements for name in every}
    assert half == pytest.approx(
        {
            **dict.fromkeys((PLAIN_4, ROTATED_4, MLX_LM[4]), 4.5),
            **dict(
                zip((bits for bits in RUNGS if bits not in WINDOWED), (4.0, 4.5, 5.0, 5.5, 6.5, 6.5, 8.5), strict=True)
            ),
            PLAIN_4_32: 5.0,
            MLX_LM[8]: 8.5,
        }
    )
    assert 8 * stored_bytes(caches["4"], demo.geometry) / elements == pytest.approx(5.0), "float32 scales"
    assert stored_bytes(caches["4"], demo.geometry) == demo.geometry.bytes_per_token


def test_answers_are_read_where_their_values_are(
    demo: LoadedModel, every: dict[str, NewCaches], token_ids: list[int]
) -> None:
    """Unquantized as in one pass over all tokens, whatever the chunks; with quantized KV otherwise."""
    network: Any = demo.engine.model
    logits = network.model(mx.array([token_ids]))[0]
    plain = np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
    unsure = [at for at in range(20, len(token_ids) - 5) if -5 < plain[at - 1, token_ids[at]] < -0.01]
    values = [range(at, at + length) for at, length in zip(unsure[::3], (3, 1, 5), strict=False)]
    found = answers(network, Chat(token_ids, values), {name: every[name] for name in ("4", MLX_LM[4])}, CHUNK)
    assert found.keys() == {BASE, "4", MLX_LM[4]}
    for at, value in enumerate(values):
        wanted = np.mean([plain[place - 1, token_ids[place]] for place in value])
        assert found[BASE][at].logprob == pytest.approx(wanted, abs=1e-3)
        assert found[BASE][at].right == all(plain[place - 1].argmax() == token_ids[place] for place in value)
        assert found["4"][at].logprob != found[BASE][at].logprob


def test_an_answer_is_right_when_all_its_tokens_are_the_first_choice(demo: LoadedModel, token_ids: list[int]) -> None:
    network: Any = demo.engine.model
    chosen = token_ids[:100]
    for _ in range(3):
        chosen = [*chosen, int(network.model(mx.array([chosen]))[0, -1].argmax().item())]
    other = [*chosen[:101], (chosen[101] + 1) % demo.vocab_size, chosen[102]]
    [right], [wrong] = (answers(network, Chat(ids, [range(100, 103)]), {}, CHUNK)[BASE] for ids in (chosen, other))
    assert (right.right, wrong.right) == (True, False)
    assert right.logprob > wrong.logprob
