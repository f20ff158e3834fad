"""What a load does again, and what not."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentmem.errors import FailedPrecondition
from agentmem.hints import TurnHints
from agentmem.models import RegisteredModel
from inference_service.engine.thread import EngineThread
from inference_service.models.loader import Loader
from inference_service.models.opening import Outline
from inference_service.settings import WorkerSettings
from tests.tiny_models import STRIPS_THINKING, write_llama, write_tokenizer


@pytest.fixture
async def loader(tmp_path: Path) -> AsyncIterator[Loader]:
    engine = EngineThread()
    engine.start()
    yield Loader(engine, WorkerSettings(data=tmp_path / "data"), TurnHints())
    await engine.stop(5)


async def outline(loader: Loader, directory: Path) -> Outline:
    return await loader.outline(RegisteredModel("m", str(directory)))


async def test_the_tokenizer_is_read_again_only_where_a_file_is_another(loader: Loader, tmp_path: Path) -> None:
    model = write_llama(tmp_path / "model")
    first = await outline(loader, model)
    assert (await outline(loader, model)).tokenizer is first.tokenizer
    write_tokenizer(model, STRIPS_THINKING)
    changed = await outline(loader, model)
    assert changed.text is not first.text
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 512}))
    assert (await outline(loader, model)).context_length == 512


async def test_weights_that_were_cut_or_removed_since_are_refused(loader: Loader, tmp_path: Path) -> None:
    model = write_llama(tmp_path / "model")
    await outline(loader, model)
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(FailedPrecondition, match="damaged or cut short"):
        await outline(loader, model)
    weights.unlink()
    with pytest.raises(FailedPrecondition, match="cannot be loaded from"):
        await outline(loader, model)
