from __future__ import annotations

import json
import math

import pytest

from agentmem.v1 import model_pb2
from gateway.api.reports import model_report


def test_what_is_not_known_is_null() -> None:
    told = model_report(model_pb2.Model(model_id="a", state=model_pb2.MODEL_STATE_DRAINING))
    assert told["state"] == "draining"
    for name in ("ttl", "source", "adapter", "recommended_kv_bits", "quantization_kl", "memory", "error"):
        assert told[name] is None, name


def test_memory_has_all_figures() -> None:
    figures = model_pb2.ModelMemory(usable_bytes=9, agents_4k=2)
    told = model_report(model_pb2.Model(memory=figures))["memory"]
    assert model_pb2.ModelMemory(**told) == figures
    assert len(told) == len(model_pb2.ModelMemory.DESCRIPTOR.fields)


def test_ttl_in_seconds() -> None:
    model = model_pb2.Model()
    model.ttl.FromMilliseconds(1500)
    assert model_report(model)["ttl"] == 1.5


@pytest.mark.parametrize(("kl", "told"), [(0.25, 0.25), (0.0, 0.0), (math.inf, "Infinity"), (math.nan, "NaN")])
def test_a_divergence_is_json(kl: float, told: object) -> None:
    report = model_report(model_pb2.Model(quantization_kl=kl))
    assert report["quantization_kl"] == told
    json.dumps(report, allow_nan=False)
