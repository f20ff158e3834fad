"""A load repeats only what has changed."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from mlx_lm.models import llama

from agentmem.errors import FailedPrecondition, Unavailable
from agentmem.kv.hints import TurnHints
from agentmem.load_stages import LoadStage
from agentmem.process.models import RegisteredModel
from inference_service.engine.mlx_lm_adapter import ATTENTION_NAME
from inference_service.engine.thread import EngineThread
from inference_service.models import finding
from inference_service.models.loaded import OpenedModel
from inference_service.models.loading import Loader
from inference_service.models.opening import ModelInfo
from inference_service.settings import WorkerSettings
from tests.tiny_models import STRIPS_THINKING, write_llama, write_tokenizer


@pytest.fixture
async def loader(tmp_path: Path) -> AsyncIterator[Loader]:
    engine = EngineThread()
    engine.start()
    yield Loader(engine, WorkerSettings(data=tmp_path / "data"), TurnHints())
    await engine.stop(5)


async def info(loader: Loader, directory: Path) -> ModelInfo:
    return await loader.info(RegisteredModel("m", str(directory)))


async def test_the_tokenizer_is_read_again_only_where_a_file_is_another(loader: Loader, tmp_path: Path) -> None:
    model = write_llama(tmp_path / "model")
    first = await info(loader, model)
    assert (await info(loader, model)).tokenizer is first.tokenizer
    write_tokenizer(model, STRIPS_THINKING)
    changed = await info(loader, model)
    assert changed.tokenizer is not first.tokenizer
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 512}))
    assert (await info(loader, model)).context_length == 512


async def test_turns_that_begin_together_ask_once_what_is_free(loader: Loader, monkeypatch: pytest.MonkeyPatch) -> None:
    now, free = [100.0], [8, 7]
    monkeypatch.setattr(finding, "monotonic", lambda: now[0])
    monkeypatch.setattr(finding, "obtainable_bytes", lambda _floor: free.pop(0))
    assert [loader.budget.spare() for _ in range(32)] == [8] * 32
    now[0] += 0.1
    assert loader.budget.spare() == 7


async def test_weights_that_were_cut_or_removed_since_are_refused(loader: Loader, tmp_path: Path) -> None:
    model = write_llama(tmp_path / "model")
    await info(loader, model)
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(FailedPrecondition, match="damaged or cut short"):
        await info(loader, model)
    weights.unlink()
    with pytest.raises(FailedPrecondition, match="cannot be loaded from"):
        await info(loader, model)


async def test_a_look_at_a_hubs_model_leaves_the_loaded_ones_their_attention(
    loader: Loader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They share a module of mlx-lm: a backend of its own would take the place of the one that chose their paths."""
    directory = write_llama(tmp_path / "model")
    await info(loader, directory)
    config = json.loads((directory / "config.json").read_text())
    monkeypatch.setattr(finding, "fetch_description", lambda _source: (config, {"F32": 1000}))
    with pytest.raises(finding.NotFetched):
        await loader.info(RegisteredModel("hub", "owner/name"))
    assert getattr(llama, ATTENTION_NAME).backend is finding.ATTENTION


async def test_a_hubs_model_that_does_not_fit_is_refused_before_a_download(
    loader: Loader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = json.loads((write_llama(tmp_path / "model") / "config.json").read_text())
    monkeypatch.setattr(finding, "fetch_description", lambda _source: (config, {"U32": 10**15}))
    for look in (loader.info, lambda registered: loader.open(registered, lambda _stage, _share: None)):
        with pytest.raises(FailedPrecondition, match=r"'hub' does not fit: its weights take 1000\.0 TB"):
            await look(RegisteredModel("hub", "owner/name"))


async def test_the_context_is_as_long_as_memory_holds(
    loader: Loader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small model that says a million positions took 16.8 GB for computing, and was refused where they were not."""
    directory = write_llama(tmp_path / "model", context=1 << 20)

    def registered(context: int | None = None) -> RegisteredModel:
        return RegisteredModel("m", str(directory), context_length=context, kv_bits="4")

    async def opened(context: int | None = None) -> OpenedModel:
        return await loader.open(registered(context), lambda _stage, _share: None)

    monkeypatch.setattr(finding, "share_bytes", lambda: 128 << 20)
    monkeypatch.setattr(finding, "obtainable_bytes", lambda _floor: 128 << 20)
    short = await opened()
    assert 10_000 < short.info.context_length < short.info.own_context_length == 1 << 20
    kv = short.info.context_length * short.info.geometry.bytes_per_token
    assert short.needs.fixed_bytes + 2 * kv <= 128 << 20, "half of the rest holds one such agent"
    assert (await loader.info(registered())).context_length == short.info.context_length
    assert (await opened(4096)).info.context_length == 4096
    with pytest.raises(FailedPrecondition, match=f"or set --context-length to {short.info.context_length} or less"):
        await opened(1 << 20)
    loaded = await loader.load(short, (), lambda _stage, _share: None)
    assert loaded.context_length == short.info.context_length
    assert loaded.taken_bytes <= 128 << 20
    loader.unloaded(loaded)


async def test_turns_of_other_models_go_on_while_one_is_proved_and_measured(loader: Loader, tmp_path: Path) -> None:
    opened = await loader.open(RegisteredModel("m", str(write_llama(tmp_path / "model"))), lambda *_: None)
    stages, steps = ["opened"], Counter[str]()

    def step() -> bool:
        steps[stages[-1]] += 1
        return False

    loader._engine.attach(step)
    await loader.load(opened, [], lambda stage, share: stages.append(f"{stage} {share}"))
    layers = opened.info.geometry.layers
    assert steps["measure 0.0"] > 3 * layers, "means of K and V, and quality"
    assert steps["prove 0.0"] > 10 * layers, "proofs"


@pytest.mark.parametrize("at", [LoadStage.MEASURE, LoadStage.PROVE])
async def test_a_load_ends_with_the_worker(loader: Loader, tmp_path: Path, at: LoadStage) -> None:
    opened = await loader.open(RegisteredModel("m", str(write_llama(tmp_path / "model"))), lambda *_: None)
    reached = asyncio.Event()

    def report(stage: LoadStage, _share: float) -> None:
        if stage is at:
            reached.set()

    load = asyncio.create_task(loader.load(opened, [], report))
    await reached.wait()
    await loader._engine.stop(60)
    with pytest.raises(Unavailable):
        await load
    assert not loader._engine.alive
