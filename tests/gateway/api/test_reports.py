"""The load of a model, in a line and for machines."""

import pytest

from agentmem.v1 import model_pb2
from gateway.api.reports import load_dict, load_line


def model(seconds: float | None = None, **progress: object) -> model_pb2.Model:
    found = model_pb2.Model(model_id="smol\x1b", progress=model_pb2.LoadProgress(**progress))  # type: ignore[arg-type]
    if seconds is not None:
        found.progress.remaining.FromMilliseconds(round(1000 * seconds))
    return found


@pytest.mark.parametrize(
    ("told", "line"),
    [
        (model(stage="read"), "reading the weights"),
        (model(12.4, stage="read", share=0.4), "reading the weights, 40 %, about 12 s left"),
        (model(0.1, stage="read", share=0.999), "reading the weights, 100 %, about 1 s left"),
        (model(stage="prove", once=True), "proving attention on this device, once per model"),
        (model(0, stage="fetch", share=1, once=True), "opening its files"),
        (
            model(30, stage="fetch", share=0.5, once=True),
            "downloading it from the hub, 50 %, once per model, about 30 s left",
        ),
        (model(stage="new\x1b", share=0.5), "new\\x1b, 50 %"),
    ],
)
def test_what_loads(told: model_pb2.Model, line: str) -> None:
    assert load_line(told) == f"loading smol\\x1b: {line}"


def test_for_machines() -> None:
    told = {"model": "smol\x1b", "stage": "read", "share": 0.5, "once": False}
    assert load_dict(model(stage="read", share=0.5)) == {**told, "remaining_seconds": None}
    assert load_dict(model(2.5, stage="read", share=0.5)) == {**told, "remaining_seconds": 2.5}
