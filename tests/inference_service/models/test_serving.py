from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agentmem.errors import FailedPrecondition, NotFound, Unavailable
from agentmem.models import RegisteredModel
from inference_service.engine.thread import EngineThread
from inference_service.models.registry import registry
from inference_service.models.serving import Models
from inference_service.settings import WorkerSettings
from tests.tiny_models import write_llama


@pytest.fixture
async def engine() -> AsyncIterator[EngineThread]:
    thread = EngineThread()
    thread.start()
    yield thread
    await thread.stop(10)


def registered(**sources: str) -> dict[str, RegisteredModel]:
    return {name: RegisteredModel(name, source) for name, source in sources.items()}


def worker_settings(data: Path) -> WorkerSettings:
    return WorkerSettings(data=data)


async def test_a_model_that_loads(tmp_path: Path, engine: EngineThread) -> None:
    models = Models(
        registered(tiny=str(write_llama(tmp_path / "m")), b="org/b"), engine, worker_settings(tmp_path / "data")
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
    models = Models(registered(empty=str(tmp_path / "empty")), engine, worker_settings(tmp_path / "data"))
    with pytest.raises(FailedPrecondition, match="'empty' cannot be loaded"):
        await models.load_default()
    assert models.loaded is None


def test_unregistered_is_told_before_loading() -> None:
    models = Models(registered(a="x"), cast(Any, None), WorkerSettings())
    with pytest.raises(NotFound, match="registered are a"):
        models.get("b")
    models.check_registered("a")


def test_default_is_the_first() -> None:
    models = Models(registry(["b=x", "a=y"]), cast(Any, None), WorkerSettings())
    assert models.default == "b"
    models.loaded = cast(Any, SimpleNamespace(model_id="b"))
    assert models.get("b") is models.loaded
