"""Products of rows: every way gives the same, in every kind of layer, for one network alone; and turns stay right."""

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models.switch_layers import SwitchGLU
from mlx_lm.tuner.lora import LoRALinear
from mlx_lm.utils import load_model

from inference_service.engine import products
from inference_service.engine.products import (
    DEQUANTIZED,
    FLATTENED,
    GIVEN,
    PADDED,
    WAYS,
    ProductChoice,
    Shape,
    dequantized_bytes,
    install,
    quantized_layers,
)
from inference_service.models.loaded import LoadedModel
from tests.inference_service.directories import written_by
from tests.inference_service.engine.batch_turns import begin, prompt_of, right, run
from tests.oracle import Oracle
from tests.tiny_models import write_deepseek2, write_llama, write_quantized, write_tiny

pytestmark = pytest.mark.sampled(3)

WIDTH, OUTPUTS = 64, 96
OTHERS = [FLATTENED, PADDED, DEQUANTIZED]


def everywhere(way: str) -> ProductChoice:
    """Return a choice for all steps and chunks; in a chunk rows are a matrix already."""
    return ProductChoice({1: way}, {1: way if way == DEQUANTIZED else GIVEN})


def linear(bias: bool, mode: str = "affine") -> nn.QuantizedLinear:
    plain = nn.Linear(WIDTH, OUTPUTS, bias)
    if bias:
        plain.bias = mx.random.normal((OUTPUTS,))
    return plain.to_quantized(group_size=32, bits=4, mode=mode)


def with_lora() -> nn.Module:
    wrapped = LoRALinear.from_base(linear(bias=True))
    wrapped.lora_b = mx.random.normal(wrapped.lora_b.shape)
    return wrapped


def tied() -> nn.QuantizedEmbedding:
    return nn.Embedding(OUTPUTS, WIDTH).to_quantized(group_size=32, bits=4)


LAYERS: dict[str, Callable[[], Any]] = {
    "plain": lambda: linear(bias=False),
    "bias": lambda: linear(bias=True),
    "mxfp4": lambda: linear(bias=True, mode="mxfp4"),
    "lora": with_lora,
    "tied": tied,
}


class Taken(Exception):
    """A way was."""


def taken(*arguments: Any, **named: Any) -> mx.array:
    raise Taken


def compute(layer: Any, x: mx.array) -> mx.array:
    out: mx.array = layer.as_linear(x) if isinstance(layer, nn.QuantizedEmbedding) else layer(x)
    return out


def chosen(model: nn.Module, way: str) -> list[Any]:
    """Have all layers of a model compute by one way; which they are."""
    found = [layer for layers in quantized_layers(model, mx.float32).values() for layer in layers]
    install(found, everywhere(way))
    return found


def close(found: mx.array, wanted: mx.array) -> bool:
    return found.shape == wanted.shape and bool(mx.allclose(found, wanted, rtol=1e-4, atol=1e-4))


@pytest.mark.parametrize("way", OTHERS)
@pytest.mark.parametrize("kind", LAYERS)
def test_every_way_gives_the_same(kind: str, way: str) -> None:
    layer = LAYERS[kind]()
    inputs = [mx.random.normal(shape) for rows in range(2, 34) for shape in ((rows, 1, WIDTH), (rows, 2, 1, WIDTH))]
    wanted = [compute(layer, x) for x in inputs]
    assert len(chosen(layer, way)) == 1
    compiled = mx.compile(lambda x: compute(layer, x))
    for x, y in zip(inputs, wanted, strict=True):
        assert close(compute(layer, x), y)
    for x, y in zip(inputs[::9], wanted[::9], strict=True):
        assert close(compiled(x), y)


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("shape", [(4, 3, WIDTH), (1, 5, WIDTH), (4, WIDTH), (WIDTH,)])
def test_what_is_no_decode_step_is_a_chunk(kind: str, shape: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = LAYERS[kind](), mx.random.normal(shape)
    wanted = compute(layer, x)
    [changed] = chosen(layer, FLATTENED)
    monkeypatch.setitem(products.WAYS, FLATTENED, taken)
    assert mx.array_equal(compute(layer, x), wanted)
    with pytest.raises(Taken):
        compute(layer, mx.zeros((2, 1, WIDTH)))
    install([changed], ProductChoice({}, {1: DEQUANTIZED}))
    monkeypatch.setattr(products, "_dequantized", taken)
    with pytest.raises(Taken):
        compute(layer, x)
    compute(layer, mx.zeros((2, 1, WIDTH)))


def test_a_way_holds_up_to_the_next_number_of_rows() -> None:
    choice = ProductChoice({2: GIVEN, 4: PADDED, 8: FLATTENED, 32: FLATTENED}, {64: DEQUANTIZED})
    at = {rows: choice.step(rows) for rows in (1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 33, 500)}
    assert [rows for rows, way in at.items() if way == PADDED] == [4, 7]
    assert [rows for rows, way in at.items() if way == FLATTENED] == [8, 15, 16, 31, 32, 33, 500]
    assert [choice.chunk(rows) for rows in (1, 63, 64, 2048)] == [GIVEN, GIVEN, DEQUANTIZED, DEQUANTIZED]
    assert choice.of(mx.zeros((5, 1, WIDTH))) == PADDED
    assert choice.of(mx.zeros((2, 32, WIDTH))) == choice.of(mx.zeros((64, WIDTH))) == DEQUANTIZED


def test_rows_are_padded_to_a_matrix() -> None:
    seen: list[int] = []

    def product(x: mx.array) -> mx.array:
        seen.append(x.shape[0])
        return x

    for rows in range(2, 8):
        x = mx.random.normal((rows, 1, WIDTH))
        assert mx.array_equal(WAYS[PADDED](product, x), x)
    assert min(seen) == 8
    assert max(seen) < 16


def experts(mode: str = "affine", bias: bool = False) -> SwitchGLU:
    glu = SwitchGLU(WIDTH, OUTPUTS, 4, bias=bias)
    for each in (glu.gate_proj, glu.up_proj, glu.down_proj) if bias else ():
        each.bias = mx.random.normal(each.bias.shape)
    nn.quantize(glu, group_size=32, bits=4, mode=mode)
    return glu


@pytest.mark.parametrize(("mode", "bias"), [("affine", False), ("affine", True), ("mxfp4", True)])
def test_experts_of_a_chunk_are_dequantized(mode: str, bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = experts(mode, bias)
    x, whom = mx.random.normal((1, 40, WIDTH)), mx.random.randint(0, 3, (1, 40, 2))
    wanted, step = layer(x, whom), layer(x[:, :2], whom[:, :2])
    assert len(chosen(layer, DEQUANTIZED)) == 3
    assert close(layer(x, whom), wanted)
    monkeypatch.setattr(products, "_dequantized", taken)
    with pytest.raises(Taken):
        layer(x, whom)
    assert mx.array_equal(layer(x[:, :2], whom[:, :2]), step)
    for linear in (layer.gate_proj, layer.up_proj, layer.down_proj):
        linear.products = ProductChoice({}, {21: DEQUANTIZED})
    assert mx.array_equal(layer(x, whom), wanted), "20 rows of each are too few"


def test_a_scale_of_the_whole_matrix_leaves_no_choice() -> None:
    layer = SwitchGLU(WIDTH, OUTPUTS, 4)
    layer.up_proj = layer.up_proj.to_quantized(16, 4, "nvfp4", global_scale=True)
    layer.down_proj = layer.down_proj.to_quantized(32, 4)
    [(shape, found)] = quantized_layers(layer, mx.float32).items()
    assert (shape.experts, found) == (4, [layer.down_proj])


def test_what_dequantized_weights_take() -> None:
    layer = experts()
    assert dequantized_bytes(layer, mx.float16) == 0
    chosen(layer, FLATTENED)
    assert dequantized_bytes(layer, mx.float16) == 0
    chosen(layer, DEQUANTIZED)
    assert dequantized_bytes(layer, mx.float16) == 2 * (WIDTH * OUTPUTS * 4 * 2)


def test_layers_are_found_once() -> None:
    model = nn.Module()
    shared = linear(bias=False)
    model.layers = [shared, shared, with_lora()]
    model.embed = tied()
    model.experts = SwitchGLU(WIDTH, WIDTH, 2)
    nn.quantize(model.experts, group_size=32, bits=4)
    model.derived = type("Derived", (nn.QuantizedLinear,), {})(WIDTH, OUTPUTS, group_size=32, bits=4)
    model.plain = nn.Linear(WIDTH, OUTPUTS)
    layers = quantized_layers(model, mx.float16)
    shape = Shape(WIDTH, OUTPUTS, "affine", 4, 32, mx.float16)
    assert list(layers) == [shape, Shape(WIDTH, WIDTH, "affine", 4, 32, mx.float16, 2)]
    found, of_experts = layers.values()
    assert {id(layer) for layer in found} == {id(shared), id(model.layers[2].linear), id(model.embed)}
    assert len(found) == len(of_experts) == 3
    for each in layers.values():
        install(each, everywhere(FLATTENED))
    assert quantized_layers(model, mx.float16) == layers, "nor forgotten once they have a choice"


def test_another_model_over_the_same_weights_is_as_it_was(tmp_path: Path) -> None:
    directory = write_quantized(tmp_path / "q", write_llama(tmp_path / "m"), bits=4, group_size=32)
    plain, _ = load_model(directory)
    ours = copy.deepcopy(plain)
    before = nn.QuantizedLinear.__call__, nn.QuantizedEmbedding.as_linear
    parameters = list(ours.parameters())
    changed = chosen(ours, FLATTENED)
    assert len(changed) == 2 * 7 + 2
    assert before == (nn.QuantizedLinear.__call__, nn.QuantizedEmbedding.as_linear)
    assert list(ours.parameters()) == parameters, "a choice is no parameter"
    classes = {type(layer) for layers in quantized_layers(plain, mx.float32).values() for layer in layers}
    assert classes == {nn.QuantizedLinear, nn.QuantizedEmbedding}
    assert all(isinstance(layer, nn.QuantizedLinear | nn.QuantizedEmbedding) for layer in changed)
    tokens = mx.array([[3], [5], [7]])
    assert close(ours(tokens), plain(tokens))


def write_tied_qwen2(directory: Path) -> Path:
    """Biases on Q, K and V, and an embedding that is the output as well."""
    return write_tiny(directory, "qwen2", {"model_type": "qwen2", "head_dim": 16, "tie_word_embeddings": True}, 0)


def in_4_bits(write: Callable[[Path], Path]) -> Callable[[Path], Path]:
    return lambda directory: write_quantized(directory / "q", write(directory / "m"), bits=4, group_size=32)


directory = written_by(
    [in_4_bits(write) for write in (write_llama, write_tied_qwen2, write_deepseek2)], ["llama", "qwen2", "deepseek2"]
)


@pytest.mark.slow
@pytest.mark.usefixtures("few_ride")
@pytest.mark.parametrize("way", OTHERS)
def test_turns_of_a_batch_stay_right(
    model: LoadedModel, oracle: Oracle, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[int] = []
    original = products.computed

    def counted(layer: Any, taken: str, x: mx.array, *others: Any) -> mx.array:
        rows.append(x.shape[0] if taken == way else 0)
        return original(layer, taken, x, *others)

    monkeypatch.setattr(products, "computed", counted)
    chosen(model.engine.model.model, way)
    turns = [begin(model, prompt_of(model, number, repeats), 6) for number, repeats in enumerate((3, 1, 2))]
    run(model)
    assert all(right(oracle, turn) for turn in turns)
    assert max(rows) >= 3, "rows were together"
