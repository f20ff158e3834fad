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


@pytest.mark.parametrize("problem", ["rows_problem", "riding_problem"])
async def test_a_slower_way_is_remembered_if_its_trial_ran(
    starts: Starts, proved: list[str], monkeypatch: pytest.MonkeyPatch, problem: str
) -> None:
    """A trial that raised may have lacked memory, and is made again."""
    way = {"rows_problem": "rows_together", "riding_problem": "rides"}[problem]
    for found, remembered in (proof.Raised("no memory"), False), ("they differ", True):
        with monkeypatch.context() as patched:
            patched.setattr(proof, problem, lambda *_, found=found: found)
            slower = await starts.load("8" if remembered else "4")
        assert not getattr(slower.engine.model, way)
        assert any(found in report.note for report in slower.paths)
        again = await starts.load("8" if remembered else "4")
        assert getattr(again.engine.model, way) is not remembered
        assert any(found in report.note for report in again.paths) is remembered
    assert proved == ["4", "4", "8"]
