from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import mlx.core as mx
import numpy as np
import pytest

from agentmem.errors import DataLoss, FailedPrecondition, PermissionDenied
from agentmem.identity import Ledger, TurnPlace
from agentmem.validation import AgentKey
from inference_service.engine.calibration import Calibration, LayerMeans
from inference_service.engine.geometry import Geometry, LayerGroup, StateArray, StateGroup
from inference_service.engine.quantization import FOUR_BITS, KVFormat
from inference_service.portable.format import KVGeometry, LayerShape, Manifest, kv_geometry, layers_of
from inference_service.portable.importing import check_fit, check_namespace, kv_misfit

HERE = Geometry(4, mx.bfloat16, FOUR_BITS, LayerGroup((1, 3), 2, 192, 128), LayerGroup((0, 2), 1, 64, 64, window=512))
SLIDING, FULL = LayerShape(1, 64, 64, 512), LayerShape(2, 192, 128)
MEANS = Calibration([LayerMeans(np.ones((2, 64), np.float16), np.zeros((2, 64), np.float16))])
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
    return replace(made, **{"model_fingerprint": "model", "calibration": MEANS.bytes, **changes})


def test_the_models_shape() -> None:
    assert kv_geometry(HERE) == manifest().geometry
    apart = kv_geometry(replace(HERE, format=KVFormat(5, 4)))
    assert apart == replace(manifest().geometry, bits="5/4")
    assert layers_of(HERE, window=True) == (0, 2)
    assert layers_of(HERE, window=False) == (1, 3)
    assert layers_of(replace(HERE, sliding=None), window=True) == ()


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
        ({"fingerprint": "other", "calibration": b""}, "centred on other means"),
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


def test_kv_without_the_states_of_recurrent_layers_is_left_out() -> None:
    states = StateGroup((4,), ((StateArray((3, 8), "F32"),),))
    recurrent = cast(Any, SimpleNamespace(**vars(MODEL) | {"geometry": replace(HERE, states=states)}))
    assert "it lacks the recurrent layers' states" in kv_misfit(manifest(1, 2), recurrent)
    assert not kv_misfit(manifest(1, 2, kv_tokens=0, first_positions=()), recurrent)


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
