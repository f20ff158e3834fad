"""A real model over a real BLAS, whose products round by how many rows and keys they have: warm against cold.

A conversation that is computed again is cut into other chunks than before. Where products of all shapes round alike,
all its packed KV is the same, bit for bit. Where they do not, a last bit moves an element to the next of 16 codes, and
what later layers make of that moves others. Then two computations differ, by a small part of what the quantization
costs, and each is as near as the other to the model without quantization. A mistake would be seen all the same.
"""

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from functools import cached_property
from pathlib import Path

import mlx.core as mx
import pytest

from benchmarks import smollm2
from benchmarks.packages import Unavailable
from inference_service.engine.calibrating import calibrate
from inference_service.engine.paged.arena import HostArena
from inference_service.engine.paged.sequence import Sequence
from inference_service.engine.paged.store import KVStore
from inference_service.engine.quality import kl_divergences, sample
from tests import blas
from tests.inference_service.engine.batch_turns import computed
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
        self.oracle = Oracle(directory, calibration=self.calibration.arrays)

    @cached_property
    def cold(self) -> mx.array:
        """Log-probabilities after the tokens of the second piece, [TOKENS - RESUMED, vocabulary], by OpenBLAS."""
        with blas.openblas():
            return mx.array(self.oracle.logprobs(self.ids)[RESUMED:])

    @cached_property
    def unquantized(self) -> mx.array:
        logits = self.network.over_own(mx.array([self.ids]), cache=self.network.own_caches())[0, RESUMED:]
        mx.eval(logits)
        return logits

    def computed(self, pieces: Items[int], between: "Fault" = lambda store, kv: None) -> "Computed":
        """In pieces; before the last one, which begins from what is in blocks, something may happen there."""
        store = KVStore(self.geometry, 3, 0, self.calibration.codecs(self.geometry))
        kv, at = store.sequence([2, 0, 1]), 0
        for n in pieces:
            if at + n == TOKENS:
                between(store, kv)
                kv.working.clear()
                store.resume(kv)
                n = TOKENS - kv.length
            logits = computed(self.network, store, (kv, self.ids[kv.length : kv.length + n]))
            at += n
        return Computed(logits[RESUMED - TOKENS :], store, kv)


Fault = Callable[[KVStore, Sequence], object]


class Computed:
    """The last piece's logits, and where K and V are."""

    def __init__(self, logits: mx.array, store: KVStore, kv: Sequence) -> None:
        self.logits, self.store, self.kv = logits, store, kv

    @property
    def packed(self) -> list[bytes]:
        counts = [min(256, self.kv.length - at) for at in range(0, self.kv.length, 256)]
        return [
            part
            for block, tokens in zip(self.kv.full.blocks, counts, strict=False)
            for part in self.store.read_block(block, tokens)().values()
        ]


def divergence(p: mx.array, q: mx.array) -> float:
    return float(kl_divergences(p, q).mean())


def check(world: World, warm: Computed) -> None:
    """Nearly the oracle's, and as often the same first choice."""
    assert divergence(world.cold, warm.logits) < NEAR
    same = mx.argmax(world.cold, axis=-1) == mx.argmax(warm.logits, axis=-1)
    assert (same.mean() > 0.9).item()


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
def test_where_products_round_alike_all_is_the_same(world: World) -> None:
    """So it is rounding alone that makes the difference, and no path."""
    whole, pieces = world.computed([TOKENS]), world.computed([RESUMED, 33, TOKENS - RESUMED - 33])
    assert whole.packed == pieces.packed
    recomputed = mx.array(world.oracle.logprobs([*world.ids, 0])[RESUMED:-1])  # One that it does not remember.
    logprobs = whole.logits - mx.logsumexp(whole.logits, axis=-1, keepdims=True)
    likely = recomputed > -10
    assert (mx.abs(mx.where(likely, logprobs - recomputed, 0)).max() < 1e-3).item()


@pytest.mark.slow
@pytest.mark.usefixtures("products_by_openblas")
def test_some_tokens_that_are_wrong_are_found(world: World) -> None:
    """32 are those before them."""

    def repeated(store: KVStore, kv: Sequence) -> None:
        assert isinstance(store.full, HostArena)
        for tensor in store.full.layout.views(store.full.words(kv.full.blocks[0])).values():
            tensor[:, :, 64:96] = tensor[:, :, 32:64]

    with pytest.raises(AssertionError):
        check(world, world.computed([RESUMED, TOKENS - RESUMED], repeated))
