"""Reading with several kinds of KV side by side, on the demo model, against one pass over the same caches."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from benchmarks.demo_model.dialogues import make_dialogue
from benchmarks.demo_model.tokenizer import render
from benchmarks.quality.chats import Chat, Question
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
    return demo.tokenizer.encode(render(make_dialogue(7, 320).messages), parse_special=True)[:300]


def test_all_are_there_in_their_order(demo: LoadedModel, every: dict[str, NewCaches]) -> None:
    assert tuple(every) == offered(demo.geometry) == tuple(name for name in NAMES if name not in WINDOWED)


def test_bits_of_windows_are_for_models_with_windows_and_full_layers(demo: LoadedModel) -> None:
    windows = LayerGroup((7,), 1, 64, 64, window=512)
    both = replace(demo.geometry, sliding=windows)
    assert offered(both) == NAMES
    assert {*WINDOWED} == {*NAMES} - {*offered(demo.geometry)} == {*quality.ladder(both)} - {*quality.LADDER}
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


@pytest.mark.slow
def test_every_question_is_asked_of_the_chat_alone(
    demo: LoadedModel, every: dict[str, NewCaches], token_ids: list[int]
) -> None:
    """In whatever order: what one question wrote behind the chat is forgotten before the next."""
    questions = [Question(token_ids[start : start + length], 3) for start, length in ((50, 12), (83, 30), (127, 7))]
    some = {name: every[name] for name in ("4", MLX_LM[4])}
    found = answers(demo.engine.model, Chat(token_ids[:200], questions), some, CHUNK)
    turned = answers(demo.engine.model, Chat(token_ids[:200], questions[::-1]), some, CHUNK)
    alone = answers(demo.engine.model, Chat(token_ids[:200], questions[1:2]), some, CHUNK)
    for name in (BASE, *some):
        logprobs = [answer.logprob for answer in found[name]]
        assert logprobs == pytest.approx([answer.logprob for answer in turned[name]][::-1], abs=1e-4)
        assert logprobs[1] == pytest.approx(alone[name][0].logprob, abs=1e-4)
        assert len({round(each, 3) for each in logprobs}) == 3
    assert found["4"][0].logprob != found[BASE][0].logprob


def test_an_answer_is_right_when_all_its_tokens_are_the_first_choice(demo: LoadedModel, token_ids: list[int]) -> None:
    network: Any = demo.engine.model
    chosen = token_ids[:100]
    for _ in range(3):
        chosen = [*chosen, int(network.model(mx.array([chosen]))[0, -1].argmax().item())]
    last_but_one = [*chosen[100:101], (chosen[101] + 1) % demo.vocab_size, chosen[102]]
    questions = [Question(chosen[90:], 3), Question([*chosen[90:100], *last_but_one], 3)]
    found = answers(network, Chat(chosen[:90], questions), {}, CHUNK)[BASE]
    assert [answer.right for answer in found] == [True, False]
    assert found[0].logprob > found[1].logprob
