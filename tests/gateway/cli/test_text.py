from datetime import UTC, datetime

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from agentmem.v1 import model_pb2
from agentmem.words import printable
from gateway.cli.text import age, described, iso_time


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s ago"), (61, "1 min ago"), (7300, "2 h ago"), (200000, "2 d ago")]
)
def test_age(seconds: int, text: str) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert age(Timestamp(seconds=int(now.timestamp()) - seconds), now) == text


def test_no_time() -> None:
    assert age(Timestamp(), datetime.now(UTC)) == "never"
    assert iso_time(Timestamp()) is None
    assert iso_time(Timestamp(seconds=1)) == "1970-01-01T00:00:01.000+00:00"


@given(st.text())
def test_nothing_steers_the_terminal(text: str) -> None:
    assert printable(text).isprintable()


def test_printable_keeps_what_it_is_told() -> None:
    assert printable("é🌍\x1b[31m\n\t", keep="\n") == "é🌍\\x1b[31m\n\\t"


def test_all_that_a_message_says_is_described() -> None:
    model = model_pb2.Model(
        model_id="[b]\x1b",
        state=model_pb2.MODEL_STATE_LOADED,
        is_default=True,
        context_length=131_072,
        kv_bits_measured=[model_pb2.KVBitsMeasurement(kv_bits="4", kl_divergence=0.25, bytes_per_token=18_432)],
        memory=model_pb2.ModelMemory(pool_bytes=8 * 10**9, agents_4k=20),
        calibration=model_pb2.Calibration(largest_k_means=[0.5, 2]),
    )
    names, values = (map(str, column.cells) for column in described(model).columns)
    assert dict(zip(names, values, strict=True)) == {
        "model_id": "[b]\\x1b",
        "state": "loaded",
        "is_default": "yes",
        "context_length": "131,072",
        "kv_bits_measured": "kv_bits 4, kl_divergence 0.25, bytes_per_token 18.4 kB",
        "memory.pool_bytes": "8.0 GB",
        "memory.agents_4k": "20",
        "calibration.largest_k_means": "0.5, 2",
    }
