"""How servers are started: the same room for each, and llama.cpp's only where there is one."""

from __future__ import annotations

import json
from pathlib import Path

import mlx.core as mx

from benchmarks.models import DEMO, Weights, in_float32
from benchmarks.peers.servers import Agentmem, LlamaCpp, MlxLm, Room, end_tokens

WEIGHTS = Weights("demo", DEMO, Path("demo.gguf"), "float32")
CROWDED = Room(2, 8, 1024, holds=3, held_tokens=700)


def option(command: list[str], name: str) -> str | None:
    return command[command.index(name) + 1] if name in command else None


def test_a_crowded_memory_holds_as_many_conversations_in_each_servers_own_format(tmp_path: Path) -> None:
    agentmem = Agentmem(tmp_path, WEIGHTS, CROWDED)
    assert "AGENTMEM_WORKER_POOL_BYTES" not in agentmem.environment()
    (tmp_path / "model.json").write_text(json.dumps({"agentmem": {"kv_bytes_per_token": 10, "kv_bits": "4"}}))
    assert agentmem.environment()["AGENTMEM_WORKER_POOL_BYTES"] == str(3 * 768 * 10)
    # 6 layers, 2 KV heads, K and V of 64 elements in 4 bytes.
    assert option(MlxLm(tmp_path, WEIGHTS, CROWDED).command(1), "--prompt-cache-bytes") == str(3 * 768 * 6144)
    llama = LlamaCpp(tmp_path, WEIGHTS, CROWDED, ["llama-server"]).command(1)
    assert [option(llama, name) for name in ("--parallel", "--ctx-size", "--cache-ram")] == ["3", "3072", "0"]


def test_tokens_that_end_a_turn_are_never_generated() -> None:
    tokenizer = json.loads((DEMO / "tokenizer.json").read_text())
    ids = {token["id"] for token in tokenizer["added_tokens"] if token["special"]}
    config = json.loads((DEMO / "config.json").read_text())
    eos = config["eos_token_id"]
    assert {eos} if isinstance(eos, int) else {*eos} <= ids == set(end_tokens(DEMO))


def test_a_copy_in_float32_has_the_same_weights(tmp_path: Path) -> None:
    copy = in_float32(DEMO, tmp_path / "copy")
    assert {path.name for path in copy.iterdir()} >= {"config.json", "tokenizer.json", "model.safetensors"}
    before, after = (mx.load(str(path / "model.safetensors")) for path in (DEMO, copy))
    assert isinstance(before, dict)
    assert isinstance(after, dict)
    assert before.keys() == after.keys()
    assert all(array.dtype == mx.float32 for array in after.values())
    assert all(mx.array_equal(array.astype(mx.float32), after[name]).item() for name, array in before.items())
