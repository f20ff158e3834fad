"""A model is proved once: with a device, packages and code."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentmem.kv.hints import TurnHints
from agentmem.process.model_registry import RegisteredModel
from inference_service.engine.thread import EngineThread
from inference_service.models import proof, proofs
from inference_service.models.loaded import LoadedModel
from inference_service.models.loading import Loader
from inference_service.settings import WorkerSettings
from tests.tiny_models import write_llama


class Starts:
    """Loads of one model by workers that start with the same data."""

    def __init__(self, engine: EngineThread, directory: Path) -> None:
        self._engine, self._settings = engine, WorkerSettings(data=directory / "data", quality_check=False)
        self._source = str(write_llama(directory / "model"))
        self.memory = directory / "data" / "worker" / "proofs.json"

    async def load(self, kv_bits: str = "4") -> LoadedModel:
        loader = Loader(self._engine, self._settings, TurnHints())
        opened = await loader.open(RegisteredModel("m", self._source, kv_bits=kv_bits), lambda *_: None)
        loaded = await loader.load(opened, (), lambda *_: None)
        loader.unloaded(loaded)
        return loaded


@pytest.fixture
async def starts(tmp_path: Path) -> AsyncIterator[Starts]:
    engine = EngineThread()
    engine.start()
    yield Starts(engine, tmp_path)
    await engine.stop(5)


@pytest.fixture
def proved(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Formats of what is proved."""
    found: list[str] = []
    original = proof.order_problem

    def problem(network: object, geometry: object) -> str:
        found.append(str(geometry.format))  # type: ignore[attr-defined]
        return original(network, geometry)  # type: ignore[arg-type]

    monkeypatch.setattr(proof, "order_problem", problem)
    return found


async def test_the_next_start_takes_the_proof(starts: Starts, proved: list[str]) -> None:
    first, second = await starts.load(), await starts.load()
    assert proved == ["4"]
    assert second.paths == first.paths
    for loaded in (first, second):
        assert loaded.engine.model.rows_together and loaded.engine.model.rides


async def test_other_bits_other_code_and_a_damaged_record_are_proved(
    starts: Starts, proved: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await starts.load()
    await starts.load("8")
    assert proved == ["4", "8"]
    monkeypatch.setattr(proofs, "_here", lambda: "other code")
    await starts.load()
    starts.memory.write_text('{"other code": {}}')
    await starts.load()
    starts.memory.write_text("{")
    await starts.load()
    assert proved == ["4", "8", "4", "4", "4"]


@pytest.mark.parametrize(
    ("problem", "seconds"),
    [("rows_problem", 10.0), ("riding_problem", 10.0), ("", -1.0)],
    ids=["rows", "riding", "slow"],
)
async def test_a_slower_way_is_looked_at_again(
    starts: Starts, proved: list[str], monkeypatch: pytest.MonkeyPatch, problem: str, seconds: float
) -> None:
    """The machine may have been busy, and another release may be right."""
    with monkeypatch.context() as patched:
        patched.setattr(proof, "_SLOW_SECONDS", seconds)
        if problem:
            patched.setattr(proof, problem, lambda *_: "they differ")
        slower = await starts.load()
    assert not (slower.engine.model.rows_together and slower.engine.model.rides)
    faster = await starts.load()
    assert faster.engine.model.rows_together and faster.engine.model.rides
    await starts.load()
    assert proved == ["4", "4"]
