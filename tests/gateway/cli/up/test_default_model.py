"""A default model that cannot be loaded, before anything starts and after it."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentmem.console import Mistake
from agentmem.process.settings import load
from gateway.cli.up import default_model
from gateway.cli.up.background import stack
from gateway.cli.up.command import not_serving
from gateway.cli.up.default_model import check_hub, check_model
from gateway.cli.up.settings import UpSettings
from tests import blas
from tests.agentmem.process.test_model_cache import cached
from tests.agentmem.process.test_model_folders import DEMO, whole
from tests.gateway.cli.up.test_command import line_with, started
from tests.gateway.running import ANY_PORT
from tests.model_hub import Hub, Repository, model_hub

TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN_PATH")
NETWORK = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "AGENTMEM_OFFLINE", "ALL_PROXY", "all_proxy")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (*TOKENS, *NETWORK):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    return tmp_path / "hf"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with model_hub() as served:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{served.port}")
        yield served


def look(*arguments: str) -> None:
    settings = load(UpSettings, arguments)
    check_model(settings)
    check_hub(settings)


def refusal(*arguments: str) -> str:
    with pytest.raises(Mistake) as caught:
        look(*arguments)
    return str(caught.value)


def up(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gateway.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("./mute", "model 'mute' cannot be loaded from mute: it has no tokenizer; copy tokenizer.json and"),
        ("./m.gguf", "m.gguf is a GGUF file, and Agentmem runs MLX safetensors: `agentmem models search m` finds one"),
        ("smol", "did you mean OWNER/smol or ./smol?"),
        ("org/none", "127.0.0.1 cannot be reached (Connection refused); try again when the network is there; on this"),
    ],
)
def test_up_refuses_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, said: str) -> None:
    monkeypatch.chdir(tmp_path)
    (whole(tmp_path / "mute") / "tokenizer.json").unlink()
    (tmp_path / "m.gguf").touch()
    data = tmp_path / "data"
    ports = ["--http", ANY_PORT, "--grpc", ANY_PORT, "--metrics", ""]
    ended = up("up", "--model", model, "--data", str(data), *ports)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("Error: ") and ended.stderr.count("\n") == 1 and said in ended.stderr
    assert not data.exists() or os.listdir(data) == ["up.lock"]


def test_chat_refuses_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (whole(tmp_path / "mute") / "tokenizer.json").unlink()
    monkeypatch.setenv("AGENTMEM_UP_DATA", str(tmp_path / "data"))
    for model, said in ((f"{tmp_path}/mute", "it has no tokenizer"), ("org/none", "cannot be reached")):
        with pytest.raises(Mistake, match=said), stack(model, keep=False):
            pass
    assert not (tmp_path / "data").exists()


def test_a_chat_needs_its_own_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the registry file's default is, and however many others are served."""
    (whole(tmp_path / "mute") / "tokenizer.json").unlink()
    file = tmp_path / "models.toml"
    file.write_text(f"default = 'demo'\n[models.good]\nsource = '{whole(tmp_path / 'good')}'\n")
    monkeypatch.setenv("AGENTMEM_UP_MODELS", str(file))
    monkeypatch.setenv("AGENTMEM_UP_DATA", str(tmp_path / "data"))
    for model, said in ((f"{tmp_path}/mute", "it has no tokenizer"), ("org/none", "cannot be reached")):
        with pytest.raises(Mistake, match=said), stack(model, keep=False):
            pass


def test_only_the_default_is_judged(tmp_path: Path) -> None:
    whole(tmp_path / "good")
    (whole(tmp_path / "bad") / "tokenizer.json").unlink()
    look("--model", f"{tmp_path}/good", "--model", f"{tmp_path}/bad")
    assert "'bad' cannot be loaded" in refusal("--model", f"{tmp_path}/bad", "--model", f"{tmp_path}/good")


@pytest.mark.parametrize("variable", ["--offline", "AGENTMEM_OFFLINE", "HF_HUB_OFFLINE"])
def test_offline_the_models_of_this_machine_are_named(
    home: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    cached(home / "hub", "org/here")
    given = [variable] if variable == "--offline" else []
    if not given:
        monkeypatch.setenv(variable, "1")
    said = refusal("--model", "org/none", *given)
    assert said.startswith("model 'org/none' is not downloaded, and --offline or a variable (AGENTMEM_OFFLINE, ")
    assert said.endswith("forbids the network; on this machine are org/here, demo")
    look("--model", "org/here", *given)


def test_a_downloaded_model_is_judged_without_its_hub(home: Path) -> None:
    (cached(home / "hub", "org/mute") / "tokenizer.json").unlink()
    assert "it has no tokenizer" in refusal("--model", "org/mute")


def test_a_hub_that_answers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default_model, "HUB_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        said = refusal("--model", "org/none")
    answer = "127.0.0.1 does not answer within 0.5 s; try again later; on this machine is demo"
    assert said == f"model 'org/none' is not downloaded, and {answer}"


def test_a_hub_without_the_model(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repositories["org/there"] = Repository({"config.json": b"{}"})
    hub.repositories["org/down"] = Repository({"config.json": b"{}"}, status=503)
    look("--model", "org/there")
    assert "127.0.0.1 answers 503; try again later" in refusal("--model", "org/down")
    assert "127.0.0.1 has none of this name (404): look at the spelling" in refusal("--model", "org/none")
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    look("--model", "org/none")


def test_where_others_are_served_a_silent_hub_is_left_to_the_worker(tmp_path: Path) -> None:
    look("--model", "org/none", "--model", str(whole(tmp_path / "good")))


def test_last_line_names_the_model_and_why() -> None:
    settings = load(UpSettings, ["--model", "a=org/a", "--model", "b=org/b"])
    assert not_serving(settings, "it is broken.") == "NOT serving a: it is broken. It serves b, demo."


async def test_up_does_not_say_ready_without_its_default(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTMEM_WORKER_QUALITY_CHECK", "false")
    monkeypatch.setenv(blas.VARIABLE, "1")
    damaged = Path(shutil.copytree(DEMO, tmp_path / "damaged"))
    weights = damaged / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    told = ["--data", str(run_dir), "--http", ANY_PORT, "--grpc", ANY_PORT, "--metrics", ANY_PORT]
    async with started("--model", str(damaged), *told) as (_, output):
        await line_with(output, "model    damaged, and demo")
        said = await line_with(output, "Ctrl-C stops.")
    assert said.startswith(f"NOT serving damaged: model 'damaged' cannot be loaded from {damaged}: model.safetensors ")
    assert said.endswith("fetch it again. It serves demo. Ctrl-C stops.\n")
