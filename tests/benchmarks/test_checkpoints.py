"""The smallest prompt with a checkpoint on its way, and what the benchmark says of it."""

import asyncio
from pathlib import Path

from benchmarks.checkpoints import CONFIG, NEW_TOKENS, Bench, claims, measure, tables
from benchmarks.loading import load
from benchmarks.random_models import write_model
from inference_service.memory.spacing import STEP
from inference_service.models.fingerprint import ContentHashes

TINY = {
    **CONFIG,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "hybrid_override_pattern": "M*-",
    "head_dim": 64,
    "num_attention_heads": 2,
    "mamba_num_heads": 2,
    "mamba_head_dim": 32,
    "ssm_state_size": 16,
    "vocab_size": 1024,
}


def test_a_prompt(tmp_path: Path) -> None:
    write_model(TINY, tmp_path / "model", quantized=False)
    model = load("tiny", str(tmp_path / "model"), hashes=ContentHashes(tmp_path / "hashes.json"))
    with asyncio.Runner() as loop:
        figures = measure(Bench(model, tmp_path, STEP + 700), loop, runs=1)
    assert figures["distance"] == STEP
    assert list(figures["checkpoints"]) == [str(STEP)]
    (kept,) = figures["edits"]
    assert figures["edits"][kept]["resumed_at"] == STEP < int(kept) < STEP + 700
    assert figures["checkpoint_bytes"] > figures["state_bytes"] > 0
    cost, saved = tables(figures)
    assert cost.rows[1][2] == f"{figures['checkpoint_bytes'] / 1e6:.1f} MB"
    assert saved.rows[0][:3] == [f"{int(kept):,}", "2,048", f"{int(kept) - STEP + NEW_TOKENS:,}"]
    assert [claim.at_most for claim in claims(figures)] == [True, True, False]
