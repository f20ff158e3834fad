"""Models that cannot be loaded: the client is told why, and what served before serves on."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path

import grpc
import mlx.core as mx
import pytest

from tests.system.client import chat, refused
from tests.system.recomputed import TOLERANCE
from tests.system.several import ARGUMENTS, FAILED, Several
from tests.tiny_models import (
    SHARDS,
    write_llama,
    write_plamo3,
    write_shards,
)

NO_SHARD, PLAMO, LIES = "no-shard", "plamo", "lies"
EXITS = "exits"
UNDECODED = "undecoded"


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Several]:
    """A model that works, and one for each thing that can be wrong. Files break after the worker has started."""
    root = tmp_path_factory.mktemp("models")
    models = {"good": write_llama(root / "good")}
    for seed, name in enumerate((NO_SHARD, LIES), start=1):
        models[name] = write_llama(root / name, seed=seed)
    models[PLAMO] = write_plamo3(root / PLAMO)
    models[EXITS] = write_olmo(root / EXITS)
    models[UNDECODED] = write_undecoded(root / UNDECODED)
    several = Several(models, ("--pool-bytes", str(1 << 18)), hosted=True)
    asyncio.run(several.stack.up())
    path = models[LIES] / "model.safetensors"  # a weight that the self-test fails on, when the old model is gone
    weights = mx.load(str(path)) | {"model.layers.0.self_attn.q_proj.weight": mx.zeros((7, 7))}
    path.unlink()
    mx.save_safetensors(str(path), weights)
    (write_shards(models[NO_SHARD], SHARDS) / SHARDS[1]).unlink()
    yield several
    asyncio.run(several.stack.destroy())


def write_olmo(directory: Path) -> Path:
    """A model whose code in mlx-lm ends the process, because it wants a package that is not installed."""
    write_llama(directory)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "model_type": "olmo"}))
    return directory


def write_undecoded(directory: Path) -> Path:
    """A model whose tokenizer does not say which bytes its tokens stand for."""
    write_llama(directory)
    file = directory / "tokenizer.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "decoder": None}))
    return directory


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (NO_SHARD, "model-00002-of-00002.safetensors is missing"),
        (LIES, "cannot be loaded from"),
        (PLAMO, "Plamo3DecoderLayer"),
        (EXITS, "its code ends the process"),
        (UNDECODED, r"decoder \(none\) does not say which bytes a token stands for.*put that there"),
    ],
)
async def test_a_load_that_fails_leaves_the_old_model_serving(several: Several, name: str, said: str) -> None:
    good, bad = await several.on("good"), await several.on(name)
    first = await good.turn("agent", messages=chat(("user", f"Who is {name}?")), **ARGUMENTS)
    for call in (bad.say("agent", "Hello?", **ARGUMENTS), several.load(name)):
        caught = await refused(call, grpc.StatusCode.FAILED_PRECONDITION, f"'{name}'")
        assert re.search(said, caught.details() or "")
    described = await several.model(name)
    assert described.state == FAILED and described.error == caught.details()
    turn = await good.say("agent", "And you?", **ARGUMENTS)
    assert await several.difference("agent", "good", turn) < TOLERANCE
    assert sum(turn.cached.values()) >= len(first.token_ids)
    assert await several.loaded() == ["good"]
