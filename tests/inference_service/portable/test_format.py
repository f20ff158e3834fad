from dataclasses import replace
from math import prod
from typing import Any

import pytest
from hypothesis import given

from agentmem.errors import DataLoss
from agentmem.kv.bits import KVBits
from agentmem.kv.ledger import Ledger, TurnPlace
from inference_service.engine.paged import sequence
from inference_service.portable.format import (
    DTYPE_BYTES,
    SLACK,
    KVGeometry,
    LayerShape,
    Manifest,
    StateShape,
    check,
    places,
    state_tensor,
)

from .files import file, manifests, recurrent

GOOD = file().manifest
WITH_STATES = recurrent().manifest


def test_the_slack_is_the_engines() -> None:
    assert SLACK == sequence.SLACK


@given(manifests())
def test_places_are_gapless_aligned_and_shaped_as_promised(manifest: Manifest) -> None:
    check(manifest)
    end = 0
    states = {
        state_tensor(layer, i): array
        for layer, arrays in enumerate(manifest.geometry.states)
        for i, array in enumerate(arrays)
    }
    for name, place in manifest.places.items():
        assert place.start == end
        assert place.start % DTYPE_BYTES[place.dtype] == 0
        end = place.end
        if name in states:
            assert (place.dtype, place.shape) == (states[name].dtype, (1, *states[name].shape))
            assert place.end - place.start == prod(place.shape) * DTYPE_BYTES[place.dtype]
            continue
        layer, part = name.removeprefix("layer_").split("_", 1)
        shape = manifest.geometry.layers[int(layer)]
        k_bits, v_bits, _ = KVBits.parse(str(manifest.geometry.bits))
        dim, bits = (shape.k_dim, k_bits) if part.startswith("k") else (shape.v_dim, v_bits)
        width = dim * bits // 32 if part.endswith("weights") else dim // manifest.geometry.group_size
        tokens = manifest.kv_tokens - manifest.first_positions[int(layer)]
        assert place.shape == (1, tokens, shape.kv_heads, width)
        assert place.end - place.start == prod(place.shape) * DTYPE_BYTES[place.dtype] == tokens * place.token_bytes
    assert manifest.data_bytes == end
    assert len(manifest.places) == (6 * len(manifest.geometry.layers) + len(states) if manifest.kv_tokens else 0)


def with_ledger(**changes: Any) -> Manifest:
    return replace(GOOD, ledger=replace(GOOD.ledger, **changes))


def with_layers(*layers: LayerShape) -> Manifest:
    return replace(GOOD, geometry=replace(GOOD.geometry, layers=layers))


def with_states(*layers: tuple[StateShape, ...]) -> Manifest:
    return replace(WITH_STATES, geometry=replace(WITH_STATES.geometry, states=layers))


@pytest.mark.parametrize(
    "bad",
    [
        with_ledger(offsets=GOOD.ledger.offsets[:-1]),
        with_ledger(offsets=(GOOD.ledger.offsets[-1], *GOOD.ledger.offsets[1:])),
        with_ledger(text=GOOD.ledger.text + b"x"),
        with_ledger(turns=(TurnPlace(21, 0),)),
        with_ledger(turns=(TurnPlace(10, 0), TurnPlace(9, 0))),
        with_ledger(turns=(TurnPlace(10, 0), TurnPlace(12, 3))),
        with_ledger(turns=(TurnPlace(10, -1),)),
        replace(GOOD, ledger=Ledger()),
        replace(GOOD, kv_tokens=21),
        replace(GOOD, kv_tokens=-1),
        replace(GOOD, first_positions=(0,)),
        replace(GOOD, first_positions=(1, 9)),
        replace(GOOD, first_positions=(0, 10)),
        replace(GOOD, first_positions=(0, -1)),
        replace(GOOD, kv_tokens=0),
        replace(GOOD, geometry=replace(GOOD.geometry, dtype="U32")),
        replace(GOOD, geometry=replace(GOOD.geometry, dtype="F64")),
        *(replace(GOOD, geometry=replace(GOOD.geometry, bits=bits)) for bits in (0, 7, True, "4", "4/4", "5/", None)),
        replace(GOOD, geometry=replace(GOOD.geometry, group_size=0)),
        replace(
            GOOD,
            geometry=replace(GOOD.geometry, layers=(*GOOD.geometry.layers, LayerShape(1, 64, 64, window=7))),
            first_positions=(0, 9, 8),
        ),
        with_layers(),
        with_layers(LayerShape(0, 64, 64), GOOD.geometry.layers[1]),
        with_layers(LayerShape(1, 63, 64), GOOD.geometry.layers[1]),
        with_layers(LayerShape(1, 64, 1 << 40), GOOD.geometry.layers[1]),
        with_layers(LayerShape(1 << 40, 64, 64), GOOD.geometry.layers[1]),
        with_layers(GOOD.geometry.layers[0], LayerShape(1, 64, 64, window=0)),
        with_states(),
        with_states(()),
        with_states((StateShape("F64", (2,)),)),
        with_states((StateShape("F32", (0,)),)),
        with_states((StateShape("F32", (-1, 2)),)),
        with_states((StateShape("F32", (1 << 40,)),)),
        with_states((StateShape("F32", (1,) * 9),)),
        replace(WITH_STATES, state_position=0),
        replace(WITH_STATES, state_position=16),
        replace(WITH_STATES, state_position=18),
        replace(WITH_STATES, kv_tokens=0, first_positions=()),
        replace(WITH_STATES, kv_tokens=0, first_positions=(), state_position=0),
        replace(GOOD, state_position=17),
    ],
)
def test_what_does_not_fit_together_is_refused(bad: Manifest) -> None:
    check(GOOD)
    check(WITH_STATES)
    with pytest.raises(DataLoss):
        check(bad)


def test_a_window_is_bounded() -> None:
    big = file(tokens=1000, kv_tokens=900)
    check(big.manifest)
    check(replace(big.manifest, first_positions=(0, 900 - 8 - SLACK)))
    with pytest.raises(DataLoss):
        check(replace(big.manifest, first_positions=(0, 900 - 8 - SLACK - 1)))


def test_widths_are_the_designs() -> None:
    geometry = KVGeometry("BF16", 4, 64, (LayerShape(8, 192, 128),))
    assert [geometry.width(0, part) for part in ("k_weights", "k_scales", "v_weights", "v_biases")] == [24, 3, 16, 2]
    apart = replace(geometry, bits="5/3")
    assert [apart.width(0, part) for part in ("k_weights", "k_scales", "v_weights", "v_biases")] == [30, 3, 12, 2]
    found = places(geometry, 1, (0,))
    assert (found["layer_0_k_weights"].dtype, found["layer_0_v_biases"].dtype) == ("U32", "BF16")
