from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentmem.console import Mistake
from gateway.cli.bench.machine.servers import environment
from gateway.cli.bench.machine.subject import context_of, directory_of, ends, subject
from inference_service.models.sources import registry


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AGENTMEM_UP_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def test_the_demo_is_what_up_takes_by_default() -> None:
    found = subject("")
    assert (found.name, found.is_demo, found.ends) == ("demo", True, (2,))
    assert found.directory == Path(registry([])["demo"].source)
    assert context_of(found.directory) == 8192


def test_a_directory_and_the_settings_of_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place := tmp_path / "mine").symlink_to(subject("demo").directory)
    monkeypatch.setenv("AGENTMEM_UP_MODEL", json.dumps([f"own={place}"]))
    monkeypatch.setenv("AGENTMEM_UP_KV_BITS", "8")
    default, named = subject(""), subject(f"other={place}")
    assert (default.name, default.directory, default.model.kv_bits) == ("own", place, "8")
    assert (named.name, named.directory, named.is_demo) == ("other", place, False)
    assert not (tmp_path / "data").exists(), "nothing of the user's is touched"


def test_a_model_that_is_not_here_is_refused_in_words() -> None:
    with pytest.raises(Mistake, match="'nobody/none' is not downloaded"):
        subject("nobody/none")
    assert directory_of("nobody/none") is None


def test_tokens_that_end_a_turn(tmp_path: Path) -> None:
    assert ends(tmp_path) == set()
    (tmp_path / "config.json").write_text('{"eos_token_id": 7}')
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "<end>"}}')
    added = [{"id": 3, "content": "<end>"}, {"id": 4, "content": "<pad>"}]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    assert ends(tmp_path) == {3, 7, 9}
    (tmp_path / "tokenizer_config.json").write_text("no JSON")
    assert ends(tmp_path) == {7, 9}


def test_a_server_of_our_own_gets_none_of_the_users_settings_but_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("UP_KEYS", "UP_CLUSTER", "CONFIG", "API_KEY", "GATEWAY_CORS_ORIGIN", "WORKER_OTLP", "WORKER_STORE"):
        monkeypatch.setenv(f"AGENTMEM_{name}", "the user's")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "the user's")
    monkeypatch.setenv("AGENTMEM_WORKER_DTYPE", "float16")
    monkeypatch.setenv("AGENTMEM_OFFLINE", "1")
    found = environment()
    assert "the user's" not in found.values() and found["PATH"]
    assert (found["AGENTMEM_WORKER_DTYPE"], found["AGENTMEM_OFFLINE"]) == ("float16", "1")
