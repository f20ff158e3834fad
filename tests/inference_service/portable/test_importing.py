from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import mlx.core as mx
import numpy as np
import pytest

from agentmem.errors import DataLoss, FailedPrecondition, PermissionDenied
from agentmem.kv.ledger import Ledger, TurnPlace
from agentmem.validation import AgentKey
from inference_service.engine.calibration import Calibration, LayerCalibration
from inference_service.engine.geometry import Geometry, LayerGroup
from inference_service.engine.quantization import FOUR_BITS
from inference_service.portable.format import Manifest
from inference_service.portable.importing import check_fit, check_namespace, kv_misfit

HERE = Geometry(4, mx.bfloat16, FOUR_BITS, LayerGroup((1, 3), 2, 192, 128), LayerGroup((0, 2), 1, 64, 64, window=512))
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
    made = Manifest(AgentKey("ns", "a", "m"), "print", ledger, kv_bits="4")
    return replace(made, **{"model_fingerprint": "model", "calibration": MEANS.portable, **changes})


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
        ({"fingerprint": "other", "kv_bits": "5/4"}, "has 5/4 bits, and that of model 'm' here 4"),
        ({"fingerprint": "other", "calibration": b""}, "packed with other means or bases"),
        ({"fingerprint": "other"}, "another format"),
    ],
)
def test_the_same_models_file_with_other_kv(change: dict[str, Any], reason: str) -> None:
    """Its ledger is good all the same."""
    other = manifest(1, 2, **change)
    check_fit(other, MODEL)
    assert reason in kv_misfit(other, MODEL)
    assert not kv_misfit(manifest(1, 2), MODEL)


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
