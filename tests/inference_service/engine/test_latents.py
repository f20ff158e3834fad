"""Attention over packed latents is right, and the test at load finds what is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest
from inference_service.engine.attention.absorbed import DECOMPRESS
from inference_service.engine.attention.flash_latents import flash_latents

from agentmem.errors import FailedPrecondition
from agentmem.kv.bits import BITS
from inference_service.engine.attention import AttentionBackend
from inference_service.engine.attention.latents import ABSORBED, LATENT_DEQUANTIZE, LatentPath, latent_candidates
from inference_service.engine.attention.self_test import decode_error, over_latents, prefill_error, tolerance
from inference_service.engine.geometry import Geometry
from inference_service.engine.quantization import PLAIN, ROTATED, Quantized
from tests.inference_service.engine.geometries import geometry

pytestmark = pytest.mark.sampled(3)


def latents(heads: int = 4, k_dim: int = 128, v_dim: int = 64, **more: Any) -> Geometry:
    return replace(geometry(heads=heads, kv_heads=1, k_dim=k_dim, v_dim=v_dim, **more), latents=True)


def with_bits(made: Geometry, bits: tuple[int, int], scheme: str) -> Geometry:
    return replace(made, format=replace(made.format, k_bits=bits[0], v_bits=bits[1], scheme=scheme))


PAIRS = list(zip(BITS, (*BITS[2:], *BITS[:2]), strict=True))
"""All bits of latents and all of rotary keys."""
FAULTS = ["latents of another position", "rotary keys of another row", "no rotary keys", "means left out"]
ON_THIS_DEVICE = latent_candidates()
SHAPES = [
    latents(),
    latents(heads=16, k_dim=512, group=64),
    latents(heads=3, k_dim=96, v_dim=32, group=32),
    latents(k_dim=64, bits=8),
]
OF_16_BITS = [latents(heads=16, k_dim=512, group=64, dtype=mx.bfloat16), latents(dtype=mx.float16)]


@pytest.mark.slow("latent_dequantize-shape1")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("path", ON_THIS_DEVICE)
def test_one_query_and_a_few_are_right(path: str, shape: Geometry) -> None:
    attend = over_latents(ABSORBED[path])
    assert decode_error(attend, shape) < tolerance(shape.dtype)
    assert prefill_error(attend, shape) < tolerance(shape.dtype)


@pytest.mark.parametrize("shape", OF_16_BITS)
def test_16_bits_are_right(shape: Geometry) -> None:
    """By arrays: on a CPU, MLX adds products of a quantized matmul in 16 bits, which the test at load does not pass."""
    attend = over_latents(ABSORBED[LATENT_DEQUANTIZE])
    assert decode_error(attend, shape) < tolerance(shape.dtype)
    assert prefill_error(attend, shape) < tolerance(shape.dtype)


@pytest.mark.parametrize("path", ON_THIS_DEVICE)
@pytest.mark.parametrize("bits", PAIRS)
def test_bits_of_latents_and_rotary_keys_apart_are_right(path: str, bits: tuple[int, int]) -> None:
    for scheme in (ROTATED, PLAIN):
        assert decode_error(over_latents(ABSORBED[path]), with_bits(latents(), bits, scheme)) < 1e-4


def of_another_position(latents: Quantized) -> Quantized:
    return latents.map(lambda part: mx.roll(part, 1, axis=2))


def of_another_row(rotary: Quantized) -> Quantized:
    return rotary.map(lambda part: mx.roll(part, 1, axis=0))


def faulty(fault: str, path: LatentPath) -> LatentPath:
    """A path that goes wrong in one way."""

    def attend(
        queries: mx.array, with_positions: mx.array, latents: Quantized, rotary: Quantized, codec: Any, *rest: Any
    ) -> mx.array:
        if fault == "latents of another position":
            latents = of_another_position(latents)
        if fault == "rotary keys of another row":
            rotary = of_another_row(rotary)
        if fault == "no rotary keys":
            with_positions = mx.zeros_like(with_positions)
        out = path(queries, with_positions, latents, rotary, codec, *rest)
        return out - codec.k_mean if fault == "means left out" else out

    return attend


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("path", ON_THIS_DEVICE)
def test_faults_are_found(path: str, fault: str) -> None:
    with pytest.raises(FailedPrecondition, match="wrong on this backend"):
        decode_error(over_latents(faulty(fault, ABSORBED[path])), latents())


def test_what_is_right_is_taken_and_reported() -> None:
    backend = AttentionBackend()
    reports = backend.self_test(latents())
    first = ON_THIS_DEVICE[0]
    assert [(report.phase, report.path) for report in reports] == [
        ("prefill", DECOMPRESS),
        ("prefill", first),
        ("decode", first),
    ]
    assert backend.choice(latents()).taken == [first]


def test_where_no_way_is_right_all_heads_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ON_THIS_DEVICE:
        monkeypatch.setitem(ABSORBED, name, faulty("means left out", ABSORBED[name]))
    backend = AttentionBackend()
    reports = backend.self_test(latents())
    assert [(report.phase, report.path) for report in reports] == [("prefill", DECOMPRESS), ("decode", DECOMPRESS)]
    assert all(name in reports[-1].note for name in ON_THIS_DEVICE)
    assert backend.choice(latents()).taken == [DECOMPRESS]


@pytest.mark.slow
@pytest.mark.parametrize("shape", OF_16_BITS)
def test_one_query_of_the_kernel_is_right(shape: Geometry, kernels: None) -> None:
    assert decode_error(over_latents(flash_latents), shape) < tolerance(shape.dtype)


@pytest.mark.parametrize("v_dim", [32, 64])
def test_a_few_queries_of_the_kernel_are_right(v_dim: int, kernels: None) -> None:
    shape = latents(heads=5, k_dim=96, v_dim=v_dim, dtype=mx.float16, group=32)
    assert prefill_error(over_latents(flash_latents), shape) < tolerance(shape.dtype)


@pytest.mark.parametrize(("bits", "scheme"), [*((bits, ROTATED) for bits in PAIRS), (PAIRS[0], PLAIN)])
def test_the_kernel_reads_all_bits(bits: tuple[int, int], scheme: str, kernels: None) -> None:
    shape = with_bits(latents(heads=1, dtype=mx.float16), bits, scheme)
    assert prefill_error(over_latents(flash_latents), shape) < 5e-3


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_the_kernel_are_found(fault: str, kernels: None) -> None:
    with pytest.raises(FailedPrecondition, match="wrong on this backend"):
        decode_error(over_latents(faulty(fault, flash_latents)), latents(dtype=mx.float16))


@pytest.mark.parametrize("shape", [latents(), latents(heads=2, k_dim=1024, dtype=mx.bfloat16)])
def test_what_the_kernel_does_not_know_is_refused(shape: Geometry, kernels: None) -> None:
    with pytest.raises(ValueError, match="flash attention"):
        decode_error(over_latents(flash_latents), shape)
