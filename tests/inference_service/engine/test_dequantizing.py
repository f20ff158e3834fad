"""Whole weights by the kernel for NVIDIA GPUs: what MLX makes of them, and its device code wherever g++ is."""

from typing import Any

import mlx.core as mx
import pytest

from inference_service.engine import dequantizing
from inference_service.engine.device import on_cuda
from tests.inference_service.engine.cuda_on_cpu import CudaOnCPU

pytestmark = pytest.mark.usefixtures("kernels")
on_gpus = pytest.mark.skipif(not on_cuda(), reason="as many elements as real models have take a GPU")


def error(*shape: int, bits: int = 4, group_size: int = 64, dtype: mx.Dtype = mx.bfloat16) -> float:
    weights = mx.random.normal(shape, key=mx.random.key(3)).astype(dtype)
    packed = mx.quantize(weights, group_size=group_size, bits=bits)
    found = dequantizing.dequantized(*packed, bits, group_size)
    assert found.shape == weights.shape and found.dtype == dtype
    exact = mx.dequantize(*(x if x.dtype == mx.uint32 else x.astype(mx.float32) for x in packed), group_size, bits)
    return float((mx.abs(found.astype(mx.float32) - exact).max() / mx.abs(exact).max()).item())


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
@pytest.mark.parametrize(("bits", "group_size"), [(4, 32), (4, 64), (4, 128), (8, 32), (8, 64)])
def test_weights_of_all_kinds(bits: int, group_size: int, dtype: mx.Dtype) -> None:
    tolerance = 0.004 if dtype == mx.bfloat16 else 0.0005
    assert error(40, 384, bits=bits, group_size=group_size, dtype=dtype) <= tolerance


@pytest.mark.parametrize("shape", [(1, 64), (64, 128), (33, 1216), (3, 5, 192)])
def test_shapes_that_do_not_fill_a_block(shape: tuple[int, ...]) -> None:
    assert error(*shape) <= 0.004


@on_gpus
@pytest.mark.parametrize("shape", [(4096, 14336), (128256, 4096), (32, 768, 1024)])
def test_shapes_of_real_models(shape: tuple[int, ...]) -> None:
    assert error(*shape) <= 0.004


def test_which_weights_it_supports() -> None:
    assert dequantizing.known("affine", 8, 32, mx.float16)
    for mode, bits, group_size, dtype in (
        ("affine", 6, 64, mx.bfloat16),
        ("affine", 4, 64, mx.float32),
        ("mxfp4", 4, 32, mx.bfloat16),
    ):
        assert not dequantizing.known(mode, bits, group_size, dtype)


def test_swapped_pairs_show(cuda_on_cpu: CudaOnCPU, monkeypatch: pytest.MonkeyPatch) -> None:
    if on_cuda():
        pytest.skip("of kernels as g++ compiles them")

    def faulty(*, header: str, **others: Any) -> Any:
        assert "level[2 * j]" in header
        return cuda_on_cpu(header=header.replace("level[2 * j]", "level[2 * j ^ 1]"), **others)

    monkeypatch.setattr(mx.fast, "cuda_kernel", faulty)
    assert error(40, 384) > 0.02
