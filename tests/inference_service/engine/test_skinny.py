"""Products of a few rows by the kernel for NVIDIA GPUs: right there, and its device code wherever g++ is."""

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

from inference_service.engine import product_speeds, skinny
from inference_service.engine.device import on_cuda
from inference_service.engine.product_speeds import Figures, ProductSpeeds, choose
from inference_service.engine.products import DEQUANTIZED, FLATTENED, GIVEN, SKINNY, STEP_ROWS, Shape
from tests.inference_service.engine.cuda_on_cpu import CudaOnCPU

pytestmark = pytest.mark.sampled(3)

on_gpus = pytest.mark.skipif(not on_cuda(), reason="as many elements as real models have take a GPU")


@pytest.fixture
def on_a_gpu(kernels: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer as on an NVIDIA GPU where code asks if kernels run."""
    monkeypatch.setattr(product_speeds, "on_cpu", lambda: False)


def error(
    rows: int, inputs: int, outputs: int, bits: int = 4, group_size: int = 64, dtype: mx.Dtype = mx.bfloat16
) -> float:
    """The largest, of the largest output in float32."""
    x, w = (mx.random.normal((n, inputs), key=mx.random.key(n)).astype(dtype) for n in (rows, outputs))
    quantized = mx.quantize(w, group_size=group_size, bits=bits)
    found = skinny.multiply(x[:, None], *quantized, bits, group_size)[:, 0]
    assert found.shape == (rows, outputs) and found.dtype == dtype
    exact = x.astype(mx.float32) @ mx.dequantize(*quantized, group_size=group_size, bits=bits).astype(mx.float32).T
    return float((mx.abs(found.astype(mx.float32) - exact).max() / mx.abs(exact).max()).item())


@pytest.mark.usefixtures("on_a_gpu")
@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
@pytest.mark.parametrize(("bits", "group_size"), [(4, 32), (4, 64), (4, 128), (8, 32), (8, 64)])
def test_weights_of_all_kinds(bits: int, group_size: int, dtype: mx.Dtype) -> None:
    tolerance = 0.01 if dtype == mx.bfloat16 else 0.002
    assert error(5, 1152, 40, bits, group_size, dtype) < tolerance


@pytest.mark.usefixtures("on_a_gpu")
@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        (64, 16),  # warps that have nothing to add, and lanes of one that have
        (1024, 33),  # outputs that do not fill a block
        (1216, 70),  # the last elements of K are not for all lanes
        *(pytest.param(*of, marks=on_gpus) for of in ((14336, 4096), (4096, 14336), (2816, 2048), (4096, 128256))),
    ],
)
@pytest.mark.parametrize("rows", [1, 7, 8, 13, 25, 32, 50])
def test_rows_and_shapes_of_all_kinds(rows: int, inputs: int, outputs: int) -> None:
    assert error(rows, inputs, outputs) < 0.01


@pytest.mark.usefixtures("on_a_gpu")
def test_wide_outputs_take_blocks_of_two_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skinny, "_WIDE", 32)
    assert error(3, 128, 70) < 0.01


@pytest.mark.usefixtures("on_a_gpu")
def test_what_the_kernel_does_not_know_is_refused() -> None:
    for dtype, inputs, bits, group_size in (
        (mx.float32, 128, 4, 64),
        (mx.bfloat16, 128, 6, 64),
        (mx.bfloat16, 128, 2, 32),
    ):
        assert not skinny.known(inputs, "affine", bits, group_size, dtype)
    assert not skinny.known(128, "mxfp4", 4, 32, mx.bfloat16)
    w = mx.quantize(mx.zeros((32, 128), mx.float16), group_size=64, bits=4)
    with pytest.raises(ValueError, match=r"bfloat16 rows of 128 with mlx.core.float16 weights, 4 by 64"):
        skinny.multiply(mx.zeros((2, 1, 128), mx.bfloat16), *w, 4, 64)


class Network(nn.Module):  # type: ignore[misc]
    """A layer with a bias, an output of tied embeddings, and one that the kernel does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.embedding, self.other = nn.Linear(128, 32), nn.Embedding(48, 128), nn.Linear(128, 64)
        self.linear.bias = mx.random.normal((32,))
        self.set_dtype(mx.float16)
        self.linear, self.embedding = (each.to_quantized(64, 4) for each in (self.linear, self.embedding))
        self.other = self.other.to_quantized(64, 6)


def skinny_is_fastest(shape: Shape, layers: Any, wanted: Any) -> Figures:
    return {str(c): {way: 1.0 if way in (SKINNY, FLATTENED) else 2.0 for way in c.ways(shape)} for c in wanted}


@pytest.mark.slow
@pytest.mark.usefixtures("on_a_gpu")
def test_layers_compute_by_it_in_steps_and_in_short_chunks(tmp_path: Any) -> None:
    network = Network()
    given = [network.linear, network.embedding.as_linear, network.other]
    inputs = [mx.random.normal(shape).astype(mx.float16) for shape in ((5, 1, 128), (2, 7, 128), (128,))]
    wanted = [compute(x) for compute in given for x in inputs]
    reports = choose(network, mx.float16, ProductSpeeds(tmp_path / "products.json", skinny_is_fastest))
    assert {SKINNY, DEQUANTIZED} <= {report.path for report in reports} <= {SKINNY, FLATTENED, DEQUANTIZED}
    for layer in (network.linear, network.embedding):
        assert layer.products.steps == layer.products.chunks == dict.fromkeys(STEP_ROWS, SKINNY) | {129: DEQUANTIZED}
    assert SKINNY not in network.other.products.steps.values()
    assert network.other.products.chunks == {33: DEQUANTIZED}
    found = [compute(x) for compute in (network.linear, network.embedding.as_linear, network.other) for x in inputs]
    for y, expected in zip(found, wanted, strict=True):
        assert y.shape == expected.shape and mx.allclose(y, expected, atol=0.02, rtol=0.01)


@pytest.mark.usefixtures("on_a_gpu")
def test_rows_of_another_dtype_are_computed_as_given(tmp_path: Any) -> None:
    """Some routers are given float32, whatever activations are."""
    network, x = Network(), mx.random.normal((3, 1, 128))
    wanted = network.linear(x)
    choose(network, mx.float16, ProductSpeeds(tmp_path / "products.json", skinny_is_fastest))
    assert network.linear.products.step(3) == SKINNY
    found = network.linear(x)
    assert found.dtype == wanted.dtype == mx.float32 and mx.allclose(found, wanted, atol=1e-4)


@pytest.mark.usefixtures("on_a_gpu")
def test_weights_that_are_views_are_copied(tmp_path: Any) -> None:
    network = Network()
    network.linear.weight = mx.repeat(network.linear.weight, 2, axis=0)[::2]
    x = mx.random.normal((3, 1, 128)).astype(mx.float16)
    wanted = network.linear(x)
    choose(network, mx.float16, ProductSpeeds(tmp_path / "products.json", skinny_is_fastest))
    assert mx.allclose(network.linear(x), wanted, atol=0.02, rtol=0.01)


@pytest.mark.slow
@pytest.mark.usefixtures("on_a_gpu")
def test_a_kernel_without_barriers_is_not_taken(
    cuda_on_cpu: CudaOnCPU, monkeypatch: pytest.MonkeyPatch, tmp_path: Any, caplog: Any
) -> None:
    if on_cuda():
        pytest.skip("of kernels as g++ compiles them")
    changed = []

    def faulty(*, name: str, header: str, **others: Any) -> Any:
        given = header
        if name.startswith("skinny"):
            header = header.replace("__syncthreads();", "")
            changed.append(header != given)
        return cuda_on_cpu(name=name, header=header, **others)

    monkeypatch.setattr(mx.fast, "cuda_kernel", faulty)
    network = nn.Linear(1024, 32, bias=False)
    network.set_dtype(mx.float16)
    layers = nn.Sequential(network.to_quantized(64, 4))
    choose(layers, mx.float16, ProductSpeeds(tmp_path / "products.json", skinny_is_fastest))
    assert changed and all(changed)
    assert {layers.layers[0].products.step(rows) for rows in STEP_ROWS} == {GIVEN}
    assert "differs" in caplog.text
