"""A real model over a real BLAS, whose products round by how many rows and keys they have: warm against cold.

A conversation that is computed again is cut into other chunks than before. Where products of all shapes round alike,
all its packed KV is the same, bit for bit. Where they do not, a last bit moves an element to the next of 16 codes, and
what later layers make of that moves others. Then two computations differ, by a small part of what the quantization
costs, and each is as near as the other to the model without quantization. A mistake would be seen all the same.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from benchmarks import smollm2
from benchmarks.packages import Unavailable
from inference_service.engine.calibration import calibrate, new_caches
from inference_service.engine.geometry import Caches
from inference_service.engine.quality import kl_divergence, sample
from tests import blas
from tests.inference_service.engine.test_measured_quality import loaded
from tests.oracle import Oracle

TOKENS, RESUMED = 500, 300
"""More keys than OpenBLAS adds up in one go; and the second piece begins at no boundary of its own."""
NEAR = 0.015
"""Nats between warm and cold, on average over the second piece: 0.003 measured. The quantization costs 0.05."""


class World:
    """A model, and its oracle: the sample's first tokens in one pass."""

    def __init__(self, directory: Path) -> None:
        self._model = loaded(directory)
        self.network, self.geometry = self._model.network, self._model.geometry
        self.ids = sample(self._model.tokenizer, TOKENS)
        self.calibration = calibrate(self.network, self.ids[:128], self.geometry)
        self.oracle = Oracle(directory, means=self.calibration.arrays)

    @cached_property
    def cold(self) -> mx.array:
        """Log-probabilities after the tokens of the second piece, [TOKENS - RESUMED, vocabulary], by OpenBLAS."""
        with blas.openblas():
            return mx.array(self.oracle.logprobs(self.ids)[RESUMED:])

    @cached_property
    def unquantized(self) -> mx.array:
        """Logits of the same without quantization."""
        logits = self.network.over_own(mx.array([self.ids]), cache=self.network.own_caches())[0, RESUMED:]
        mx.eval(logits)
        return logits

    def computed(self, pieces: Sequence[int], between: Callable[[Caches], object] = lambda _: None) -> "Computed":
        """In pieces; before the last one something may happen to the caches."""
        caches, at = new_caches(self.geometry, self.calibration), 0
        for n in pieces:
            if at + n == TOKENS:
                between(caches)
            logits = self.network(mx.array([self.ids[at : at + n]]), cache=caches)[0, RESUMED - TOKENS :]
            mx.eval(logits, [cache.state for cache in caches])
            at += n
        return Computed(logits, caches)


class Computed:
    """The last piece's logits, and the caches."""

    def __init__(self, logits: mx.array, caches: Caches) -> None:
        self.logits, self.caches = logits, caches

    @property
    def packed(self) -> list[np.ndarray[Any, Any]]:
        """All codes, scales and biases."""
        return [np.array(part) for cache in self.caches for side in cache.buffers.view() for part in side]


def divergence(p: mx.array, q: mx.array) -> float:
    """Mean over the positions, in nats."""
    return kl_divergence(p, q) / p.shape[0]


def check(world: World, warm: Computed) -> None:
    """Nearly the oracle's, and as often the same first choice."""
    assert divergence(world.cold, warm.logits) < NEAR
    same = mx.argmax(world.cold, axis=-1) == mx.argmax(warm.logits, axis=-1)
    assert same.mean().item() > 0.9


@pytest.fixture(scope="module")
def world() -> World:
    try:
        return World(smollm2.directory())
    except Unavailable as problem:
        pytest.skip(f"SmolLM2 cannot be had: {problem}")


@pytest.fixture
def products_by_openblas() -> Iterator[None]:
    with blas.openblas() as there:
        if not there:
            pytest.skip("no compiler: products are those of MLX's wheel")
        yield


@pytest.mark.timeout(900)
@pytest.mark.essential("warm is nearly cold with a real model and products that round by their shape")
@pytest.mark.usefixtures("products_by_openblas")
def test_warm_is_nearly_cold(world: World) -> None:
    check(world, world.computed([RESUMED, TOKENS - RESUMED]))


@pytest.mark.slow
@pytest.mark.usefixtures("products_by_openblas")
def test_neither_is_nearer_to_the_model_without_quantization(world: World) -> None:
    warm = world.computed([RESUMED, TOKENS - RESUMED])
    cold_error, warm_error = (divergence(world.unquantized, each) for each in (world.cold, warm.logits))
    assert warm_error == pytest.approx(cold_error, rel=0.1)
    assert divergence(world.cold, warm.logits) < cold_error / 4


@pytest.mark.slow
def test_where_products_round_alike_all_is_the_same(world: World) -> None:
    """So it is rounding alone that makes the difference, and no path."""
    whole, pieces = world.computed([TOKENS]), world.computed([RESUMED, 33, TOKENS - RESUMED - 33])
    assert all(np.array_equal(a, b) for a, b in zip(whole.packed, pieces.packed, strict=True))
    recomputed = mx.array(world.oracle.logprobs([*world.ids, 0])[RESUMED:-1])  # One that it does not remember.
    logprobs = whole.logits - mx.logsumexp(whole.logits, axis=-1, keepdims=True)
    likely = recomputed > -10
    assert mx.abs(mx.where(likely, logprobs - recomputed, 0)).max().item() < 1e-3


def a_token_short(caches: Caches) -> None:
    for cache in caches:
        cache.trim(1)


def another_block(caches: Caches) -> None:
    """32 tokens are those before them."""
    for cache in caches:
        for array in cache.buffers.arrays:
            array[:, :, 64:96] = array[:, :, 32:64]


def without_means(caches: Caches) -> None:
    for cache in caches:
        cache.codec = type(cache.codec)(cache.codec.format)


def another_layer(caches: Caches) -> None:
    """One layer has what is the next one's."""
    caches[20].buffers = caches[21].buffers


@pytest.mark.slow
@pytest.mark.usefixtures("products_by_openblas")
@pytest.mark.parametrize("fault", [a_token_short, another_block, without_means, another_layer])
def test_a_fault_is_found(world: World, fault: Callable[[Caches], object]) -> None:
    with pytest.raises(AssertionError):
        check(world, world.computed([RESUMED, TOKENS - RESUMED], fault))
