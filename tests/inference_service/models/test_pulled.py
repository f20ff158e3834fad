"""Pulled models stay registered beside those of the settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentmem.process.models import RegisteredModel
from inference_service.models.pulled import PulledModels

DEMO = {"demo": RegisteredModel("demo", "/demo"), "org/a": RegisteredModel("org/a", "/models/a")}


def test_pulled_models_follow_those_of_the_settings(tmp_path: Path) -> None:
    file = tmp_path / "worker" / "pulled.json"
    assert PulledModels(file).beside(DEMO) == DEMO
    for name in ("org/b", "org/a", "org/b"):
        PulledModels(file).keep(name)
    found = PulledModels(file).beside(DEMO)
    assert list(found) == ["demo", "org/a", "org/b"]
    assert found["org/a"].source == "/models/a"
    assert found["org/b"] == RegisteredModel("org/b", "org/b")


@pytest.mark.parametrize("value", [None, "org/b", [1, "/etc", "../b", "b", ""], {"org/b": 1}])
def test_a_damaged_file_registers_nothing(tmp_path: Path, value: object) -> None:
    file = tmp_path / "pulled.json"
    file.write_text(json.dumps({"models": value}))
    assert PulledModels(file).beside(DEMO) == DEMO
