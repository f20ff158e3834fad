"""LoRA adapters: models of their own, with memories of their own."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import pytest
from safetensors.numpy import load_file

from inference_service.models.fingerprint import ContentHashes, model_fingerprint
from inference_service.models.opening import ModelSpec
from tests.oracle import Oracle
from tests.system.recomputed import TOLERANCE
from tests.system.several import ARGUMENTS, Several
from tests.tiny_models import write_llama, write_lora

SCALE = 10.0
"""The scale in the adapters that `write_lora` writes."""
NAME = "base+poet"


def merged(directory: Path, base: Path, adapter: Path) -> Path:
    """The base with the adapter in its weights: what the adapter's answers are held against."""
    shutil.copytree(base, directory)
    weights, changes = mx.load(str(base / "model.safetensors")), mx.load(str(adapter / "adapters.safetensors"))
    for name in {name.rpartition(".")[0] for name in changes}:
        change = SCALE * (changes[f"{name}.lora_b"].T @ changes[f"{name}.lora_a"].T)
        weights[f"{name}.weight"] = weights[f"{name}.weight"] + change
    mx.save_safetensors(str(directory / "model.safetensors"), weights)
    return directory


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Several]:
    root = tmp_path_factory.mktemp("models")
    base = write_llama(root / "base")
    adapter = write_lora(root / "poet", base)
    several = Several({"base": base}, ("--adapter", f"{NAME}={adapter}"), hosted=True)
    asyncio.run(several.stack.up())
    yield several
    asyncio.run(several.stack.destroy())


def hold_against(several: Several, truth: Path, base: Path, adapter: Path) -> None:
    """Recompute with the calibration that the worker measured: merged weights differ in the last bits, and codes
    between two levels with them.
    """
    hashes = ContentHashes(truth.with_suffix(".hashes"))
    name = model_fingerprint(ModelSpec(NAME, base, adapter=adapter), "float32", hashes)
    measured = several.stack.data / "worker" / "calibration" / f"{name}.safetensors"
    several.oracles[truth] = Oracle(truth, calibration=load_file(measured))


@pytest.mark.slow
async def test_an_adapter_is_a_model_with_a_memory_of_its_own(several: Several, tmp_path: Path) -> None:
    base = several.directories["base"]
    adapter = base.with_name("poet")
    truth = merged(tmp_path / "merged", base, adapter)
    plain, poet = await several.on("base"), await several.on(NAME)
    line = "The colour of the boat is green. " * 12
    on_base, on_poet = await plain.say("agent", line, **ARGUMENTS), await poet.say("agent", line, **ARGUMENTS)
    hold_against(several, truth, base, adapter)
    assert on_poet.cached == {}, "the base's KV is not the adapter's"
    assert await several.difference("agent", "base", on_base) < TOLERANCE
    assert await several.difference("agent", NAME, on_poet, truth) < TOLERANCE
    assert await several.difference("agent", NAME, on_poet, base) > 100 * TOLERANCE
    described = await several.model(NAME)
    assert (described.adapter, described.source) == (str(adapter), str(base))
    assert described.fingerprint != (await several.model("base")).fingerprint

    tokens = [len((await several.stack.ledger("agent", name)).token_ids) for name in ("base", NAME)]
    on_base, on_poet = (
        await plain.say("agent", "Who told you?", **ARGUMENTS),
        await poet.say("agent", "Who told you?", **ARGUMENTS),
    )
    assert (on_base.cached, on_poet.cached) == ({"warm": tokens[0]}, {"warm": tokens[1]})
    assert await several.difference("agent", NAME, on_poet, truth) < TOLERANCE

    # Another adapter under the same name: the ledger stays, its KV does not serve.
    await plain.say("agent", "And now?", **ARGUMENTS)
    shutil.rmtree(adapter)
    write_lora(adapter, base, seed=1)
    other = merged(tmp_path / "other", base, adapter)
    turn = await poet.say("agent", "And now?", **ARGUMENTS)
    hold_against(several, other, base, adapter)
    assert (turn.match, turn.miss, turn.cached) == ("EXTEND", "INCOMPATIBLE", {})
    assert await several.difference("agent", NAME, turn, other) < TOLERANCE
    assert await several.difference("agent", NAME, turn, truth) > 100 * TOLERANCE
