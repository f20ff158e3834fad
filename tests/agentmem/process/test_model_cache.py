"""Models in huggingface_hub's cache, found as it finds them."""

import subprocess
import sys
from pathlib import Path

import pytest

from agentmem.process.model_cache import cache_directory, downloaded, has_token, here, is_offline, snapshot
from tests.agentmem.process.test_model_folders import whole

VARIABLES = ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME", "HF_TOKEN", "HF_TOKEN_PATH")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (*VARIABLES, "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def cached(hub: Path, hub_id: str) -> Path:
    place = hub / f"models--{hub_id.replace('/', '--')}"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text("0123")
    return whole(place / "snapshots" / "0123")


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"XDG_CACHE_HOME": "~/xdg"},
        {"HF_HOME": "$HOME/hf"},
        {"HF_HOME": "/a", "HUGGINGFACE_HUB_CACHE": "~/b"},
        {"HUGGINGFACE_HUB_CACHE": "/b", "HF_HUB_CACHE": "~/c", "TRANSFORMERS_OFFLINE": "yes"},
        {"HF_HUB_OFFLINE": "0"},
    ],
)
def test_the_place_is_huggingface_hubs(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    asked = "from huggingface_hub import constants as c; print(c.HF_HUB_CACHE, c.is_offline_mode())"
    told = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert told.stdout.split() == [str(cache_directory()), str(is_offline())]


def test_whole_models_are_named(home: Path) -> None:
    hub = home / ".cache" / "huggingface" / "hub"
    assert here() == "on this machine is demo"
    good, partial = cached(hub, "org/a--b"), cached(hub, "org/partial")
    (partial / "model.safetensors").unlink()
    (cached(hub, "org/mute") / "tokenizer.json").unlink()
    assert snapshot("org/a--b") == good and snapshot("org/partial") is None and snapshot("org/none") is None
    assert snapshot("org/mute") is not None
    assert downloaded() == ["org/a--b"]
    assert here() == "on this machine are org/a--b, demo"
    for number in range(9):
        cached(hub, f"org/m{number}")
    assert here().endswith("org/m0, org/m1, org/m2, org/m3, org/m4, org/m5, org/m6, 3 more")


def test_a_token_is_a_variable_or_a_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not has_token()
    (home / ".cache" / "huggingface").mkdir(parents=True)
    (home / ".cache" / "huggingface" / "token").write_text("hf_x")
    assert has_token()
    monkeypatch.setenv("HF_HOME", str(home / "other"))
    assert not has_token()
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    assert has_token()
