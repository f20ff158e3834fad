"""Peaks that grow with the context, counted by MLX on a CPU: heads of 256 elements, which no fused attention has."""

from pathlib import Path

import mlx.core as mx
import pytest

from agentmem.kv.blockfile import BLOCK_TOKENS
from inference_service.engine.activations import chunk_peak
from inference_service.engine.paged.passes import Pass, Piece
from inference_service.engine.paged.sequence import Sequence
from inference_service.engine.paged.store import KVStore
from inference_service.models.loaded import LoadedModel
from tests.inference_service.engine.batch_turns import begin, prompt_of, run
from tests.inference_service.engine.riders import some_prompts
from tests.inference_service.engine.test_activations import Loaded, load
from tests.tiny_models import write_tiny

CONTEXT = 32_768


def wide(directory: Path, layers: int) -> Loaded:
    extra = {"rope_theta": 10000.0, "head_dim": 256, "num_hidden_layers": layers}
    return load(write_tiny(directory, "llama", extra, 0, context=CONTEXT))


@pytest.mark.slow
@pytest.mark.usefixtures("by_openblas")
@pytest.mark.parametrize("tokens", [128, 512])
def test_a_chunk_at_the_end_takes_what_is_counted(tokens: int, tmp_path: Path) -> None:
    model, position = wide(tmp_path, 2), CONTEXT - tokens
    peak = chunk_peak(model.network, model.geometry, tokens, position)
    assert peak <= model.cost.of(tokens, position) <= model.cost.most(CONTEXT)
    assert peak > tokens * CONTEXT * model.geometry.heads * 4, "all heads' scores"


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "each"), [(1, 1), (3, 4)])
def test_a_pass_unpacks_a_layer_at_a_time(rows: int, each: int, tmp_path: Path) -> None:
    model = wide(tmp_path, 8)
    store, sequences = at_the_end(model, rows)
    needed = sum(map(store.pass_bytes, sequences))
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    of = Pass([Piece(sequence, each) for sequence in sequences], rows=True, ends=True)
    logits, written = store.compute(model.network, of, mx.zeros((rows * each,), dtype=mx.uint32))
    mx.eval(logits, written.state)
    layer = rows * CONTEXT * model.geometry.layer_bytes_per_token
    assert layer < mx.get_peak_memory() - before <= needed


def at_the_end(model: Loaded, rows: int) -> tuple[KVStore, list[Sequence]]:
    """Sequences without arrays, whose K and V are whatever blocks have."""
    blocks = CONTEXT // BLOCK_TOKENS + 1
    store = KVStore(model.geometry, rows * blocks, 0)
    sequences = [store.sequence(range(at * blocks, (at + 1) * blocks)) for at in range(rows)]
    for sequence in sequences:
        sequence.length, sequence.arrays = CONTEXT - BLOCK_TOKENS, False
    return store, sequences


def test_a_chunk_that_unpacks_is_short(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot stop between two layers for who arrives."""
    monkeypatch.setattr(model.engine, "_tokens_per_second", 400.0)
    turn = begin(model, prompt_of(model, 3, 20), 2)
    model.engine.step()
    assert turn.job.kv is not None and turn.job.position
    model.arenas.forgo_arrays(turn.job.kv)
    before = turn.job.position
    monkeypatch.setattr(model.engine, "_tokens_per_second", 400.0)
    model.engine.step()
    assert turn.job.position - before == 100
    run(model)
    assert turn.whole


@pytest.mark.parametrize(("fit", "passes"), [(1, [1, 1, 1]), (2, [2, 1]), (3, [3])])
def test_rows_without_arrays_share_computings_memory(
    fit: int, passes: list[int], model: LoadedModel, computed: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = [begin(model, prompt, 3) for prompt in some_prompts(model, 300, 300, 300)]
    while not all(turn in model.engine._running for turn in [turn.job for turn in turns]):
        model.engine.step()
    needed = 0
    for turn in turns:
        assert turn.job.kv is not None
        model.arenas.forgo_arrays(turn.job.kv)
        needed = max(needed, model.arenas.pass_bytes(turn.job.kv))
    monkeypatch.setattr(model.engine.headroom, "limit_bytes", int((fit + 0.5) * needed))
    computed.clear()
    model.engine.step()
    assert [len(pieces) for pieces in computed] == passes
    run(model)
    assert all(turn.whole for turn in turns)
