from __future__ import annotations

import io

import pytest
from rich.console import Console

from agentmem.v1 import model_pb2
from gateway.cli.models import models_table

GB = 10**9
MODEL = model_pb2.Model(
    model_id="mlx-community/gemma-3-12b-it-4bit+support",
    state=model_pb2.MODEL_STATE_LOADED,
    is_default=True,
    pinned=True,
    context_length=131_072,
    kv_bits="4",
    weight_bytes=7 * GB,
    kv_bits_measured=[model_pb2.KVBitsMeasurement(kv_bits="5/4", good=True)],
    recommended_kv_bits="5/4",
    memory=model_pb2.ModelMemory(agents_4k=20),
)


def printed(width: int, *models: model_pb2.Model) -> list[str]:
    page = io.StringIO()
    Console(file=page, width=width, highlight=False, markup=False).print(models_table(models))
    return page.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 120])
def test_nothing_is_cut_off(width: int) -> None:
    page = printed(width, MODEL)
    assert max(map(len, page)) <= width
    assert not any("…" in line for line in page)
    for whole in ("loaded", "131,072", "7.0 GB", "20"):
        assert whole in page[1].split(None, 1)[1]
    name = "".join(line[: page[0].index("state")].strip() for line in page[1:])
    assert name == MODEL.model_id
    notes = " ".join(line[page[0].index("note") :].strip() for line in page[1:]).strip()
    assert notes == 'default; pinned; adapter; kv_bits = "5/4" recommended'


@pytest.mark.parametrize(
    ("bits", "recommended", "good", "note"),
    [
        ("4", "4", {"4"}, ""),
        ("8", "5/4", {"8", "5/4"}, ""),
        ("3", "4", {"4"}, 'kv_bits = "4" recommended'),
        ("8", "", set(), "loses quality with quantized KV"),
    ],
)
def test_quality(bits: str, recommended: str, good: set[str], note: str) -> None:
    model = model_pb2.Model(model_id="m", kv_bits=bits, recommended_kv_bits=recommended)
    for each in ("3", "4", "5/4", "8"):
        model.kv_bits_measured.add(kv_bits=each, good=each in good)
    assert printed(120, model)[1].removeprefix("m").strip() == note


def test_a_model_that_was_not_measured_is_not_judged() -> None:
    model = model_pb2.Model(model_id="m", kv_bits="5/4", kv_group_size=64)
    assert "quality" not in printed(120, model)[1]
