from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import mlx.core as mx
import numpy as np
import pytest

from agentmem.errors import DataLoss, FailedPrecondition, PermissionDenied
from agentmem.kv.blockfile import BlockHeader, FileName
from agentmem.kv.ledger import Ledger, TurnPlace
from agentmem.validation import AgentKey
from inference_service.engine.calibration import Calibration, LayerCalibration
from inference_service.engine.geometry import Geometry, LayerGroup, StateArray, StateGroup
from inference_service.engine.quantization import FOUR_BITS, KVFormat
from inference_service.portable.format import (
    KVGeometry,
    LayerShape,
    Manifest,
    StateShape,
    kv_geometry,
    layers_of,
    state_tensors,
)
from inference_service.portable.importing import _files, check_fit, check_namespace, kv_misfit

HERE = Geometry(4, mx.bfloat16, FOUR_BITS, LayerGroup((1, 3), 2, 192, 128), LayerGroup((0, 2), 1, 64, 64, window=512))
SLIDING, FULL = LayerShape(1, 64, 64, 512), LayerShape(2, 192, 128)
MEANS = Calibration([LayerCalibration(np.ones((2, 64), np.float16), np.zeros((2, 64), np.float16))])
PIECES = [b"", b"a", b"\xf0\x9f", b"\x98\x80"]


class Tokenizer:
    """Token i stands for PIECES[i]."""

    hash = "tok"

    def pieces(self, token_ids: Any) -> list[bytes]:
        return [PIECES[i] for i in token_ids]


MODEL = cast(
    Any,
    SimpleNamespace(
        model_id="m",
        geometry=HERE,
        fingerprint="print",
        model_fingerprint="model",
        calibration=MEANS,
        tokenizer=Tokenizer(),
        context_length=6,
        vocab_size=4,
    ),
)


def manifest(*token_ids: int, **changes: Any) -> Manifest:
    ledger = Ledger().followed_by(token_ids, Tokenizer().pieces(token_ids), "tok", 1)
    geometry = KVGeometry("BF16", 4, 64, (SLIDING, FULL, SLIDING, FULL))
    made = Manifest(AgentKey("ns", "a", "m"), "print", geometry, ledger, len(ledger), (0,) * 4)
    return replace(made, **{"model_fingerprint": "model", "calibration": MEANS.portable, **changes})


def test_the_models_shape() -> None:
    assert kv_geometry(HERE) == manifest().geometry
    apart = kv_geometry(replace(HERE, format=KVFormat(5, 4)))
    assert apart == replace(manifest().geometry, bits="5/4")
    assert layers_of(HERE, window=True) == {"": (0, 2)}
    assert layers_of(HERE, window=False) == {"": (1, 3)}
    assert layers_of(replace(HERE, sliding=None), window=True) == {}


def test_what_was_exported_here_fits() -> None:
    check_fit(manifest(1, 2, 3, 0, 1, 2), MODEL)
    check_fit(manifest(), MODEL)
    check_fit(manifest(ledger=Ledger()), MODEL)
    check_namespace(manifest(), "ns")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model_fingerprint": "other"}, "fingerprint"),
        ({"ledger": replace(manifest(1).ledger, tokenizer_hash="other")}, "tokenizer"),
        ({"ledger": manifest(1, 1, 1, 1, 1, 1, 1).ledger}, "7 tokens"),
    ],
)
def test_another_models_file(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(FailedPrecondition) as caught:
        check_fit(manifest(1, **change), MODEL)
    assert reason in caught.value.message
    assert "import it" in caught.value.message or "export the" in caught.value.message


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"geometry": replace(manifest().geometry, dtype="F32")}, "has dtype F32, and model 'm' here dtype BF16"),
        ({"geometry": replace(manifest().geometry, bits=8)}, "has bits 8, and model 'm' here bits 4"),
        ({"geometry": replace(manifest().geometry, bits="5/4")}, "has bits 5/4, and model 'm' here bits 4"),
        ({"geometry": replace(manifest().geometry, group_size=32)}, "has group_size 32, and model 'm' here group_size"),
        ({"geometry": replace(manifest().geometry, layers=(SLIDING, FULL))}, "has 2 layers, and"),
        ({"geometry": replace(manifest().geometry, layers=(SLIDING, FULL, FULL, FULL))}, "layer 2"),
        ({"fingerprint": "other", "calibration": b""}, "packed with other means or bases"),
        ({"fingerprint": "other", "model_fingerprint": "", "calibration": b""}, "older version"),
        ({"fingerprint": "other"}, "another format"),
    ],
)
def test_the_same_models_file_with_other_kv(change: dict[str, Any], reason: str) -> None:
    """Its ledger is good all the same."""
    other = manifest(1, 2, **change)
    check_fit(other, MODEL)
    assert reason in kv_misfit(other, MODEL)
    assert not kv_misfit(manifest(1, 2), MODEL)


ARRAYS = (StateArray((3, 8), "F32"), StateArray((2,), "U32"))
RECURRENT = Geometry(4, mx.bfloat16, FOUR_BITS, LayerGroup((1, 4), 2, 64, 64), None, StateGroup((0, 3), (ARRAYS,) * 2))
MODEL_WITH_STATES = cast(Any, SimpleNamespace(**vars(MODEL) | {"geometry": RECURRENT}))
SHAPES = (StateShape("F32", (3, 8)), StateShape("U32", (2,)))


def with_states(*layers: tuple[StateShape, ...], **changes: Any) -> Manifest:
    geometry = KVGeometry("BF16", 4, 64, (LayerShape(2, 64, 64),) * 2, layers)
    found = {"kv_tokens": 2, "first_positions": (0, 0), "state_position": 2, **changes}
    return manifest(1, 2, geometry=geometry, **found)


def test_states_are_counted_among_recurrent_layers_and_kv_among_those_that_have_some() -> None:
    assert kv_geometry(RECURRENT) == with_states(SHAPES, SHAPES).geometry
    assert layers_of(RECURRENT, window=False) == {"": (0, 1)}
    assert state_tensors(RECURRENT) == {
        "state.0.0": "state_0_0",
        "state.0.1": "state_0_1",
        "state.3.0": "state_1_0",
        "state.3.1": "state_1_1",
    }
    beside = replace(HERE, states=StateGroup((0, 5), (ARRAYS,) * 2), sliding=LayerGroup((2, 4), 1, 64, 64, window=512))
    assert layers_of(replace(beside, full=LayerGroup((1, 3), 2, 64, 64)), window=True) == {"": (1, 3)}


@pytest.mark.parametrize(
    ("states", "reason"),
    [
        ((), "it lacks the recurrent layers' states"),
        ((SHAPES,), "has 1 recurrent layers, and model 'm' here 2 recurrent layers"),
        ((SHAPES, SHAPES[:1]), "has 3 arrays of states, and model 'm' here 4 arrays"),
        ((SHAPES * 2, SHAPES[:0]), "has state_0_2 of F32 [3, 8], and model 'm' here state_1_0 of F32 [3, 8]"),
        ((SHAPES, SHAPES[::-1]), "has state_1_0 of U32 [2], and model 'm' here state_1_0 of F32 [3, 8]"),
        ((SHAPES, (StateShape("F32", (8, 3)), SHAPES[1])), "has state_1_0 of F32 [8, 3], and"),
        (((StateShape("F16", (3, 8)), SHAPES[1]), SHAPES), "has state_0_0 of F16 [3, 8], and"),
    ],
)
def test_states_of_another_shape_are_named_and_left_out_with_the_kv(
    states: tuple[tuple[StateShape, ...], ...], reason: str
) -> None:
    other = with_states(*states)
    check_fit(other, MODEL_WITH_STATES)
    assert reason in kv_misfit(other, MODEL_WITH_STATES)
    assert not _files_of(other)
    assert not kv_misfit(with_states(SHAPES, SHAPES), MODEL_WITH_STATES)
    assert len(_files_of(with_states(SHAPES, SHAPES))) == 2, "a block, and a checkpoint"


def _files_of(manifest: Manifest) -> dict[FileName, BlockHeader]:
    return {} if kv_misfit(manifest, MODEL_WITH_STATES) else _files("ns", MODEL_WITH_STATES, manifest)


def test_a_ledger_alone_of_a_model_with_states_fits() -> None:
    alone = with_states(kv_tokens=0, first_positions=(), state_position=0)
    assert not kv_misfit(alone, MODEL_WITH_STATES)
    assert not _files_of(alone)


def test_a_checkpoint_without_windows_stands_for_all_tokens_before_it() -> None:
    block, checkpoint = _files_of(with_states(SHAPES, SHAPES)).values()
    assert (block.first_token, block.token_count, block.window) == (0, 2, False)
    assert checkpoint == replace(block, window=True)


@pytest.mark.parametrize(
    "ledger",
    [
        Ledger((4,), b"", (0,), "tok"),
        Ledger((1,), b"b", (1,), "tok"),
        Ledger((1, 1), b"aa", (2, 2), "tok", (TurnPlace(2, 0),)),
        Ledger((1, 3), b"a\xf0\x9f", (1, 3), "tok"),
    ],
)
def test_a_ledger_that_the_tokenizer_reads_differently(ledger: Ledger) -> None:
    with pytest.raises(DataLoss):
        check_fit(manifest(ledger=ledger), MODEL)


def test_another_namespaces_file() -> None:
    with pytest.raises(PermissionDenied, match="'ns'"):
        check_namespace(manifest(), "theirs")
