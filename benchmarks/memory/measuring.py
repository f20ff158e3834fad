"""Real KV of a model's geometry, without its weights: mlx-lm's caches, the engine's caches, and a pool that fills up.

Networks are built from their configuration and never evaluated: they say what caches they want and what shape their KV
has, and that is all that is asked of them. One thread: it is the engine's and the event loop's.
"""

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import mlx.core as mx
import psutil
from mlx_lm.models.cache import make_prompt_cache

from agentmem.kv.hints import TurnHints
from agentmem.kv.ledger import Ledger, Version
from agentmem.validation import AgentKey
from benchmarks.geometries import GEOMETRIES
from inference_service.engine.arenas import Arenas
from inference_service.engine.attention import AttentionBackend
from inference_service.engine.caches import SlidingQuantizedKVCache
from inference_service.engine.checkpoints import captured, space_of
from inference_service.engine.geometry import Caches, Geometry
from inference_service.engine.quantization import Quantized
from inference_service.memory.restore import headers
from inference_service.models.capability import QuantizationSettings, judged
from inference_service.models.latents import keep_latents
from inference_service.pool.admission import MemoryRequest
from inference_service.pool.hot import HotState
from inference_service.pool.memory import ModelMemory, sizes

_CHUNK = 2048
_UNBOUNDED = 1 << 62
"""Bytes for running batches: an account that refuses nothing, so that the pool alone does. No memory is taken."""


@dataclass(frozen=True)
class Model:
    """A network of a geometry with weights that are named and never computed, and the shape of its KV.

    `plain` is that of mlx-lm's own caches, which differs for multi-head latent attention.
    """

    name: str
    network: Any
    geometry: Geometry
    plain: Geometry


def model_of(name: str, dtype: mx.Dtype) -> Model:
    """Build it, and have the worker look at it as it looks at every model that it loads."""
    config = GEOMETRIES[name]
    module = import_module(f"mlx_lm.models.{config['model_type']}")
    network = module.Model(module.ModelArgs.from_dict(config))
    network.set_dtype(dtype)
    seam = AttentionBackend()
    seam.install(network)
    plain, _ = judged(name, network, seam, QuantizationSettings())
    keep_latents(name, network, seam)
    geometry, _ = judged(name, network, seam, QuantizationSettings())
    return Model(name, network, geometry, plain)


def fp16_caches(model: Model, tokens: int) -> dict[str, int]:
    """An agent in the caches that mlx-lm makes itself: bytes of its arrays, and of the memory that they took."""
    before, caches, geometry = _active(), make_prompt_cache(model.network), model.plain
    for layer, cache in enumerate(caches):
        group = geometry.sliding if geometry.sliding and layer in geometry.sliding.layers else geometry.full
        for count in (*_chunks(tokens - 1), 1):
            cache.update_and_fetch(
                mx.ones((1, group.kv_heads, count, group.k_dim), mx.float16),
                mx.ones((1, group.kv_heads, count, group.v_dim), mx.float16),
            )
            mx.eval(cache.keys, cache.values)
    if {cache.offset for cache in caches} != {tokens}:
        raise RuntimeError(f"mlx-lm's caches hold {[cache.offset for cache in caches]} tokens instead of {tokens}")
    held = sum(int(array.nbytes) for cache in caches for array in (cache.keys, cache.values))
    return {"bytes": held, "active": _active() - before}


def q4_agent(geometry: Geometry, tokens: int) -> dict[str, int]:
    """An agent in the engine's caches: its arrays, the memory that they took, and a window as it is saved."""
    before = _active()
    caches = _filled(geometry, tokens, seed=0)
    active = _active() - before
    checkpoint = captured(caches)
    saved = checkpoint.nbytes if checkpoint else 0
    return {"bytes": sum(cache.nbytes for cache in caches), "active": active, "saved_window": saved}


async def fill_pool(name: str, geometry: Geometry, budget: int, tokens: int) -> dict[str, Any]:
    """Take a pool of `budget` bytes, and let agents of `tokens` tokens in until the next would cost another its KV.

    It is split for such agents, as the worker's `typical_tokens` does it. Every second agent has other KV; that of the
    first and the last is read back at the end. Raises RuntimeError where it is not what was written, or the bookkeeping
    does not add up.
    """
    kinds = [_filled(geometry, tokens, seed) for seed in (0, 1)]
    resident, before = _resident(), _active()
    memory = ModelMemory(geometry, 0, sizes(0, geometry, tokens, budget, _UNBOUNDED, tokens), TurnHints())
    arenas = Arenas(geometry, memory.sizes.space.blocks, memory.sizes.space.pieces)
    taken, taken_resident = _active() - before, _resident() - resident
    gone: list[int] = []
    memory.admission.growth.evicted = gone.append
    while True:
        agents = len(memory.hot)
        key = AgentKey("benchmark", f"agent-{agents}", name)
        token_ids = range(agents * tokens, (agents + 1) * tokens)
        await _keep(memory, arenas, geometry, key, kinds[agents % 2], token_ids)
        if gone:
            break
    memory.check_integrity([])
    if memory.pool.broken.is_set():
        raise RuntimeError(f"the pool of {name} does not add up: see the log")
    kept = [key for key in memory.hot if isinstance(key, AgentKey)]
    for key in {*kept[:2], *kept[-3:-1]}:
        state = memory.hot.get(key)
        assert state is not None
        _compare(geometry, arenas, state, kinds[int(key.agent_id.removeprefix("agent-")) % 2])
    found = {
        "agents": agents,
        "blocks": memory.sizes.space.blocks,
        "pieces": memory.sizes.space.pieces,
        "arrays": arenas.nbytes,
        "active": taken,
        "resident": taken_resident,
        "active_when_full": _active() - before,
    }
    arenas.close()
    return found


async def _keep(
    memory: ModelMemory, arenas: Arenas, geometry: Geometry, key: AgentKey, caches: Caches, token_ids: range
) -> None:
    """What the worker does with a finished turn: room, a table, a copy in the arenas, a name for every block."""
    names = [header.chain_hash for header in headers("benchmark", key.namespace, token_ids)]
    room = await memory.admission.reserve(MemoryRequest(key, names, len(token_ids), keeps=True), seconds=1.0)
    window, pieces = space_of(caches, geometry)
    table = room.table(len(token_ids), [None] * len(names), pieces, window)
    arenas.write(caches, 0, table.blocks, table.pieces)
    memory.hot.put(key, HotState(Version(key.agent_id, 1), Ledger(), memory.pool.publish(names, table)))
    memory.admission.release(room)


def _compare(geometry: Geometry, arenas: Arenas, state: HotState, wrote: Caches) -> None:
    table = state.table
    checkpoint = arenas.checkpoint(table.pieces, table.window_tokens, table.tokens) if table.pieces else None
    for layer, cache in enumerate(arenas.caches(table.tokens, table.blocks, (), checkpoint)):
        for found, expected in zip(cache.buffers.view(), wrote[layer].buffers.view(), strict=True):
            if not all(mx.array_equal(a, b) for a, b in zip(found, expected, strict=True)):
                raise RuntimeError(
                    f"layer {layer} of {geometry.layers} of an agent in the pool is not what was written"
                )


def _filled(geometry: Geometry, tokens: int, seed: int) -> Caches:
    """Caches of one sequence; the sliding ones end at their cap.

    One layer of each kind is written chunk by chunk, as prefill does. The others are copies with memory of their own,
    each with other codes: quantizing them all would take minutes on a CPU, and make arrays of the same sizes.
    """
    caches = geometry.new_caches()
    mx.random.seed(seed)
    for group in filter(None, (geometry.full, geometry.sliding)):
        keys, values = (
            mx.random.normal((1, group.kv_heads, _CHUNK, width), geometry.dtype) for width in (group.k_dim, group.v_dim)
        )
        first, *others = (caches[layer] for layer in group.layers)
        for count in _chunks(tokens):
            first.update_and_fetch(keys[:, :, :count], values[:, :, :count])
            mx.eval(first.state)
        if isinstance(first, SlidingQuantizedKVCache):
            first.buffers = first.buffers.last(first.kept)
        for number, cache in enumerate(others, 1):
            cache.buffers = first.buffers.map(partial(_copied, number), first.buffers.filled)
            if isinstance(cache, SlidingQuantizedKVCache):
                cache.offset = tokens
            mx.eval(cache.state)
    return caches


def _copied(number: int, part: Quantized) -> Quantized:
    return Quantized(part.weights + mx.array(number, mx.uint32), part.scales + 0, part.biases + 0)


def _chunks(tokens: int) -> Iterator[int]:
    for first in range(0, tokens, _CHUNK):
        yield min(_CHUNK, tokens - first)


def _active() -> int:
    gc.collect()
    mx.clear_cache()
    return int(mx.get_active_memory())


def _resident() -> int:
    return int(psutil.Process().memory_info().rss)
