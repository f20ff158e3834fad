from __future__ import annotations

import json
import math

import pytest

from agentmem.v1 import model_pb2
from gateway.api.reports import model_report


def test_what_is_not_known_is_null() -> None:
    told = model_report(model_pb2.Model(model_id="a", state=model_pb2.MODEL_STATE_DRAINING))
    assert told["state"] == "draining"
    for name in ("ttl", "source", "adapter", "kv_bits", "recommended_kv_bits", "memory", "error"):
        assert told[name] is None, name
    assert told["kv_bits_measured"] == []


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
    found = model_pb2.KVBitsMeasurement(
        kv_bits="5/4", kl_divergence=kl, kl_divergence_p99=kl, bytes_per_token=9, good=True
    )
    report = model_report(model_pb2.Model(kv_bits_measured=[found]))
    nats = {"kl_divergence": told, "kl_divergence_p99": told}
    assert report["kv_bits_measured"] == [{"kv_bits": "5/4", **nats, "bytes_per_token": 9, "good": True}]
    json.dumps(report, allow_nan=False)
