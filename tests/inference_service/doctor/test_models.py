"""Models with real faults, opened as the worker opens them."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import constants

from agentmem.process import checkup
from agentmem.process.checkup import Finding, State
from inference_service.doctor.checks import checks
from inference_service.settings import WorkerSettings
from tests.tiny_models import SHARDS, write_gemma3, write_llama, write_plamo3, write_shards


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture
def copy(llama: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(llama, tmp_path / "m"))


@pytest.fixture(autouse=True)
def unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Going offline is for the process."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


def findings(tmp_path: Path, *models: object, **settings: object) -> dict[str, Finding]:
    """By check. The data directory is not there, and is not made."""
    given = WorkerSettings(data=tmp_path / "data", model=[str(model) for model in models], **settings)  # type: ignore[arg-type]
    made = checks(given).items()
    found = {name: finding for name, check in made if name.startswith("model") for finding in checkup.findings(check)}
    assert not (tmp_path / "data").exists()
    return found


def test_models_that_fit(llama: Path, tmp_path: Path) -> None:
    gemma = write_gemma3(tmp_path / "gemma")
    files = {path: path.stat().st_mtime_ns for path in gemma.iterdir()}
    found = findings(tmp_path, llama, gemma)
    assert list(found) == ["model llama", "model gemma", "model demo"]
    for each in found.values():
        assert each.state is State.OK and each.facts["agents"] > 0, each  # type: ignore[operator]
        assert f"{each.facts['agents']} hot agents of 4,096 tokens" in each.found
    assert {path: path.stat().st_mtime_ns for path in gemma.iterdir()} == files


def _no_weights(model: Path) -> None:
    (model / "model.safetensors").unlink()


def _cut_weights(model: Path) -> None:
    (model / "model.safetensors").write_bytes((model / "model.safetensors").read_bytes()[:1000])


def _no_tokenizer(model: Path) -> None:
    (model / "tokenizer.json").unlink()


def _cut_config(model: Path) -> None:
    (model / "config.json").write_text((model / "config.json").read_text()[:40])


def _lost_shard(model: Path) -> None:
    (write_shards(model, SHARDS) / SHARDS[1]).unlink()


def _other_kind(model: Path) -> None:
    shutil.rmtree(model)
    write_plamo3(model)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (_no_weights, "cannot be loaded"),
        (_cut_weights, "damaged or cut short"),
        (_no_tokenizer, "cannot be loaded"),
        (_cut_config, "cannot be loaded"),
        (_lost_shard, "model-00002-of-00002.safetensors is missing"),
        (_other_kind, "cannot run with quantized KV"),
    ],
)
def test_a_model_that_cannot_be_loaded(copy: Path, tmp_path: Path, harm: Callable[[Path], None], said: str) -> None:
    harm(copy)
    found = findings(tmp_path, copy)
    assert found["model m"].state is State.PROBLEM and said in found["model m"].found
    assert found["model demo"].state is State.OK, "another model's fault is not this one's"


def test_too_little_memory(llama: Path, tmp_path: Path) -> None:
    found = findings(tmp_path, llama, pool_bytes=1 << 20, batch_bytes=1 << 30)["model llama"]
    assert found.state is State.WARNING and found.facts["agents"] == 0
    found = findings(tmp_path, llama, pool_bytes=1, batch_bytes=1)["model llama"]
    assert found.state is State.PROBLEM and "--pool-bytes" in found.found
    found = findings(tmp_path, llama, pool_bytes=1 << 60, batch_bytes=1 << 30)["model llama"]
    assert found.state is State.PROBLEM and "does not fit" in found.found


def test_a_model_that_is_still_on_a_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    found = findings(tmp_path, "owner/none")["model owner/none"]
    assert found.state is State.WARNING and found.advice == "fetch it beforehand: agentmem models pull owner/none"
    found = findings(tmp_path, "owner/none", offline=True)["model owner/none"]
    assert found.state is State.PROBLEM and "offline" in found.found
    assert os.listdir(tmp_path) == []


def test_a_registry_that_is_refused(tmp_path: Path) -> None:
    found = findings(tmp_path, adapter=["none+x=/y"])
    assert found["models"].state is State.PROBLEM and "'none' is not registered" in found["models"].found
