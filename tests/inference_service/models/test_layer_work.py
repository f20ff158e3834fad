"""The operations of a layer, by which first chunks are bounded on Metal."""

from types import SimpleNamespace
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models.switch_layers import SwitchGLU

from inference_service.models.costs import layer_work
from tests.inference_service.engine.geometries import geometry

WIDTH, INNER, EXPERTS = 64, 128, 8


class Layer(nn.Module):
    def __init__(self, experts: int = 0) -> None:
        super().__init__()
        self.q = nn.Linear(WIDTH, WIDTH, bias=False)
        self.mlp = SwitchGLU(WIDTH, INNER, experts) if experts else nn.Linear(WIDTH, INNER, bias=False)


def weights(layer: Layer, config: dict[str, Any]) -> int:
    return layer_work(cast(Any, SimpleNamespace(layers=[layer])), geometry(), config).weights


@pytest.mark.parametrize("bits", [None, 4, 8])
@pytest.mark.parametrize(
    ("experts", "expected"), [(0, WIDTH * (WIDTH + INNER)), (EXPERTS, WIDTH * (WIDTH + 2 * 3 * INNER))]
)
def test_a_layer_has_the_same_work_in_any_bits_and_of_its_active_experts(
    bits: int | None, experts: int, expected: int
) -> None:
    layer = Layer(experts)
    if bits:
        nn.quantize(layer, group_size=32, bits=bits)
    mx.eval(layer.parameters())
    assert weights(layer, {"num_experts_per_tok": 2}) == expected
