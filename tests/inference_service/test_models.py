from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agentmem.errors import FailedPrecondition, NotFound, Unavailable
from agentmem.models import DEMO
from agentmem.settings import SettingsError
from inference_service.engine.thread import EngineThread
from inference_service.models import Models, registry
from inference_service.settings import WorkerSettings
from tests.tiny_models import write_llama


def test_registry_names() -> None:
    sources = registry(["org/model-1", "short=org/model-2"])
    assert list(sources) == ["org/model-1", "short", DEMO]
    assert sources["org/model-1"] == "org/model-1"
    assert sources["short"] == "org/model-2"
    assert Path(sources[DEMO]).name == "demo_model"


def test_demo_is_always_there_and_last_unless_named() -> None:
    assert list(registry([])) == [DEMO]
    assert list(registry(["org/model", DEMO])) == ["org/model", DEMO]
    assert list(registry([DEMO, "org/model"])) == [DEMO, "org/model"]


def test_demo_can_have_another_name() -> None:
    sources = registry(["small=demo"])
    assert sources["small"] == sources[DEMO] != DEMO


def test_demo_can_be_another(tmp_path: Path) -> None:
    assert registry([f"{DEMO}={tmp_path}"]) == {DEMO: str(tmp_path)}


def test_paths_are_named_by_their_last_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert registry([str(tmp_path / "mine")])["mine"] == str(tmp_path / "mine")
    assert registry(["./mine/"])["mine"] == "mine"
    assert registry(["~/mine"])["mine"] == str(tmp_path / "mine")
    assert registry(["x=~/mine"])["x"] == str(tmp_path / "mine")
    assert registry(["mine-not"])["mine-not"] == "mine-not", "what is no directory is a hub id"


@pytest.mark.parametrize(
    "names",
    [
        ["a=x", "a=y"],
        ["org/model", "org/model"],
        [DEMO, DEMO],
        ["=x"],
        ["a="],
        [""],
        ["demo=x", "demo"],
        ["/no/such"],
        ["x=./none"],
    ],
)
def test_registry_refuses(names: list[str]) -> None:
    with pytest.raises(SettingsError, match="--model"):
        registry(names)


@pytest.fixture
async def engine() -> AsyncIterator[EngineThread]:
    thread = EngineThread()
    thread.start()
    yield thread
    await thread.stop(10)


def worker_settings(data: Path) -> WorkerSettings:
    return WorkerSettings(data=data)


async def test_a_model_that_loads(tmp_path: Path, engine: EngineThread) -> None:
    models = Models(
        {"tiny": str(write_llama(tmp_path / "m")), "b": "org/b"}, engine, worker_settings(tmp_path / "data")
    )
    assert models.default == "tiny"
    with pytest.raises(Unavailable, match="loading"):
        models.get("tiny")
    loaded = await models.load_default()
    assert models.get("tiny") is loaded is models.loaded
    assert loaded.model_id == "tiny"
    with pytest.raises(FailedPrecondition, match=r"'tiny'.*--model b"):
        models.get("b")
    with pytest.raises(NotFound) as caught:
        models.get("c")
    assert (caught.value.kind, caught.value.name) == ("model", "c")
    assert (tmp_path / "data" / "worker" / "weights.json").is_file()


async def test_a_model_that_does_not_load_says_why(tmp_path: Path, engine: EngineThread) -> None:
    (tmp_path / "empty").mkdir()
    models = Models({"empty": str(tmp_path / "empty")}, engine, worker_settings(tmp_path / "data"))
    with pytest.raises(FailedPrecondition, match="'empty' cannot be loaded"):
        await models.load_default()
    assert models.loaded is None


def test_unregistered_is_told_before_loading() -> None:
    models = Models({"a": "x"}, cast(Any, None), WorkerSettings())
    with pytest.raises(NotFound, match="registered are a"):
        models.get("b")
    models.check_registered("a")


def test_default_is_the_first() -> None:
    models = Models(registry(["b=x", "a=y"]), cast(Any, None), WorkerSettings())
    assert models.default == "b"
    models.loaded = cast(Any, SimpleNamespace(model_id="b"))
    assert models.get("b") is models.loaded
