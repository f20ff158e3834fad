"""Rows that attend over packed K and V in blocks of host memory, as on Apple's GPUs, held against the oracle."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from inference_service.engine.paged import in_segments
from inference_service.engine.paged.metal_attention import Places
from inference_service.engine.paged.store import Kernels, KVStore
from tests.inference_service.engine.metal_on_cpu import MetalOnCPU
from tests.inference_service.engine.paged.test_passes import World
from tests.tiny_models import write_gemma3, write_gpt_oss, write_llama

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def device(metal_kernels: None) -> None:
    pass


class Segments(World):
    """Sequences without arrays, whose blocks lie in several segments."""

    def __init__(self, directory: Path, write: Callable[[Path], Path]) -> None:
        super().__init__(directory, write)
        self.store = KVStore(self.model.geometry, 16, 40, self.model.codecs, (2, 5), Kernels(one=True))
        self.one, self.other = self.store.sequence([3, 1, 2], range(8)), self.store.sequence([7, 5, 6], range(10, 18))
        self.one.arrays = self.other.arrays = False
        self.tokens = dict(zip((self.one, self.other), self.tokens.values(), strict=True))
        self.said = {self.one: [], self.other: []}


@pytest.mark.parametrize("write", [write_llama, write_gemma3, write_gpt_oss])
def test_rows_are_what_each_sequence_is_alone(
    write: Callable[[Path], Path], tmp_path: Path, metal_on_cpu: MetalOnCPU
) -> None:
    """On in a second block; passes with a prompt of several tokens attend over arrays."""
    world, kernels = Segments(tmp_path, write), len(metal_on_cpu.launches)
    one, other = world.one, world.other
    world.run((one, 254))
    world.run((other, 1))
    for step in range(4):
        world.run((one, 1), (other, 3 if step == 2 else 1))
    world.run((one, 1))
    world.run((one, 40))
    assert world.error() < 5e-3
    if not mx.metal.is_available():
        layers = world.model.geometry.layers
        assert len(metal_on_cpu.launches) - kernels == 5 * 2 * layers
    assert not one.working


def others_tables(places: Places) -> Places:
    return places._replace(blocks=places.blocks[mx.array([1, 0])])


def one_token_short(places: Places) -> Places:
    return places._replace(spans=places.spans - mx.array([0, 0, 1], dtype=mx.int32))


def one_token_late(places: Places) -> Places:
    return places._replace(spans=places.spans + mx.array([0, 1, 0], dtype=mx.int32))


@pytest.mark.parametrize("fault", [others_tables, one_token_short, one_token_late])
def test_faults_of_tables_are_found(
    fault: Callable[[Places], Places], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, original = Segments(tmp_path, write_gemma3), in_segments.places
    world.run((world.one, 60))
    world.run((world.other, 50))

    def wrong(*args: Any) -> Places:
        found = original(*args)
        assert found is not None
        return fault(found)

    monkeypatch.setattr("inference_service.engine.paged.store.places", wrong)
    for _ in range(6):
        world.run((world.one, 1), (world.other, 1))
    errors = []
    for sequence, said in world.said.items():
        wanted = world.oracle.logprobs(world.tokens[sequence][: sequence.length])
        errors.append(np.median(np.abs(np.concatenate(said) - wanted).max(axis=1)[-6:]))
    assert not max(errors) < 1e-2


def test_more_segments_than_a_kernel_takes_are_read_as_arrays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metal_on_cpu: MetalOnCPU
) -> None:
    monkeypatch.setattr(in_segments, "MOST_SEGMENTS", 1)
    world, kernels = Segments(tmp_path, write_llama), len(metal_on_cpu.launches)
    for sequence in (world.one, world.other):
        world.run((sequence, 60))
    world.run((world.one, 1), (world.other, 1))
    assert world.error() < 5e-3
    assert len(metal_on_cpu.launches) == kernels
