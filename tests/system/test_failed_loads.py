"""Models that cannot be loaded: the client is told why, and what served before serves on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import grpc
import mlx.core as mx
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.trainers import WordLevelTrainer

from agentmem.v1 import types_pb2
from tests.system.several import ARGUMENTS, FAILED, TOLERANCE, Several
from tests.system.stack import chat
from tests.tiny_models import (
    BOS,
    CHATML,
    CORPUS,
    END,
    SHARDS,
    START,
    save_tokenizer,
    write_gemma3,
    write_llama,
    write_plamo3,
    write_shards,
)

NO_SHARD, CUT, UNREADABLE, PLAMO, LARGE, LIES = "no-shard", "cut", "unreadable", "plamo", "large", "lies"
EXITS = "exits"
UNDECODED, WORDS = "undecoded", "words"


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Several]:
    """A model that works, and one for each thing that can be wrong. Files break after the worker has started."""
    root = tmp_path_factory.mktemp("models")
    models = {"good": write_llama(root / "good")}
    for seed, name in enumerate((NO_SHARD, CUT, UNREADABLE, LIES), start=1):
        models[name] = write_llama(root / name, seed=seed)
    models[PLAMO] = write_plamo3(root / PLAMO)
    models[EXITS] = write_olmo(root / EXITS)
    models[UNDECODED] = write_undecoded(root / UNDECODED)
    models[WORDS] = write_words(root / WORDS)
    models[LARGE] = write_gemma3(root / LARGE, window=2048)  # its least KV is more than the pool
    several = Several(models, ("--pool-bytes", str(1 << 18)), hosted=True)
    asyncio.run(several.stack.up())
    for name in (NO_SHARD, CUT, UNREADABLE, LIES):
        break_weights(name, models[name] / "model.safetensors")
    yield several
    several.close()


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


def write_words(directory: Path) -> Path:
    """A model whose tokens are whole words. Its weights are its own: equal ones have one calibration."""
    write_llama(directory, seed=9)
    backend = Tokenizer(WordLevel(unk_token="[UNK]"))
    backend.pre_tokenizer = Whitespace()
    trainer = WordLevelTrainer(special_tokens=["[UNK]", BOS, START, END], show_progress=False)
    backend.train_from_iterator([*CORPUS, "user assistant"], trainer)
    save_tokenizer(directory, backend, CHATML)
    return directory


def break_weights(how: str, path: Path) -> None:
    if how == CUT:
        path.write_bytes(path.read_bytes()[:-1000])
    elif how == UNREADABLE:  # not even root reads a directory
        path.unlink()
        path.mkdir()
    elif how == LIES:  # a weight that the self-test cannot compute with: found when the old model is gone
        weights = mx.load(str(path))
        weights["model.layers.0.self_attn.q_proj.weight"] = mx.zeros((7, 7))
        path.unlink()
        mx.save_safetensors(str(path), weights)
    else:
        (write_shards(path.parent, SHARDS) / SHARDS[1]).unlink()


@pytest.mark.slow("large-too little for one")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        (NO_SHARD, "model-00002-of-00002.safetensors is missing"),
        (CUT, "model.safetensors is damaged or cut short"),
        (UNREADABLE, "cannot be loaded from"),
        (LIES, "cannot be loaded from"),
        (PLAMO, "Plamo3DecoderLayer"),
        (LARGE, "too little for one"),
        (EXITS, "its code ends the process"),
        (UNDECODED, r"decoder \(none\) does not say which bytes a token stands for.*put that there"),
    ],
)
async def test_a_load_that_fails_leaves_the_old_model_serving(several: Several, name: str, said: str) -> None:
    good, bad = await several.on("good"), await several.on(name)
    first = await good.turn("agent", messages=chat(("user", f"Who is {name}?")), **ARGUMENTS)
    with pytest.raises(grpc.aio.AioRpcError, match=said) as caught:
        await bad.turn("agent", messages=chat(("user", "Hello?")), **ARGUMENTS)
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert f"'{name}'" in (caught.value.details() or "")
    with pytest.raises(grpc.aio.AioRpcError, match=said) as caught:
        await several.load(name)
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    described = await several.model(name)
    assert described.state == FAILED and described.error == caught.value.details()
    turn = await good.say("agent", "And you?", **ARGUMENTS)
    assert await several.difference("agent", "good", turn) < TOLERANCE
    assert sum(turn.cached.values()) >= len(first.token_ids)
    assert await several.loaded() == ["good"]


@pytest.mark.slow
async def test_whole_words_are_served_between_spaces(several: Several) -> None:
    client = await several.on(WORDS)
    biased = {"sampling": types_pb2.Sampling(logit_bias={4: 100}), "max_tokens": 2}
    first = await client.turn("agent", messages=chat(("user", "The boat is red.")), **biased)
    assert len(first.text.split(" ")) == 3 and first.text.startswith(" ")
    second = await client.say("agent", "And the sea?", **ARGUMENTS)
    assert second.match == "EXTEND"
    assert await several.difference("agent", WORDS, second) < TOLERANCE
