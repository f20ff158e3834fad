"""Pulled models stay registered beside those of the settings."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from agentmem.errors import FailedPrecondition
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


@pytest.mark.parametrize("damaged", [b'{"models": ["org/b"', b"\xff", b"[]", b'{"models": [1]}'])
def test_a_damaged_file_is_not_overwritten(tmp_path: Path, damaged: bytes) -> None:
    file = tmp_path / "pulled.json"
    file.write_bytes(damaged)
    PulledModels(file).keep("org/c")
    assert [*PulledModels(file).beside({})] == ["org/c"]
    assert (tmp_path / "pulled.damaged").read_bytes() == damaged
    assert {path.name for path in tmp_path.iterdir()} == {"pulled.json", "pulled.damaged"}


def test_a_model_that_cannot_be_kept_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pulled = PulledModels(tmp_path / "pulled.json")
    pulled.keep("org/b")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", full)
        with pytest.raises(FailedPrecondition, match=r"pulled, but not kept: .*No space left"):
            pulled.keep("org/c")
    assert ([*pulled.beside({})], pulled.unkept) == (["org/b"], {"org/c"})
    assert len([*tmp_path.iterdir()]) == 1
    pulled.keep("org/c")
    assert ([*pulled.beside({})], pulled.unkept) == (["org/b", "org/c"], set())
