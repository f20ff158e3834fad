"""Real KV of a model's geometry, without its weights: mlx-lm's caches, an agent's blocks, and a pool that fills up.

Networks are built from their configuration and never evaluated: they say what caches they want and what shape their KV
has, and that is all that is asked of them. One thread: it is the engine's and the event loop's.
"""

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import psutil
from mlx_lm.models.cache import make_prompt_cache

from agentmem.kv.blockfile import BLOCK_TOKENS
from agentmem.kv.hints import TurnHints
from agentmem.kv.ledger import Ledger, Version
from agentmem.validation import AgentKey
from benchmarks.geometries import GEOMETRIES
from benchmarks.places import Places
from inference_service.engine.attention import AttentionBackend
from inference_service.engine.geometry import Geometry, HostTensors, TensorShapes
from inference_service.engine.paged.sequence import SLACK, Checkpoint
from inference_service.engine.paged.store import KVStore, Start
from inference_service.memory.restore import headers
from inference_service.models.capability import QuantizationSettings, judged
from inference_service.models.latents import keep_latents
from inference_service.pool.admission import MemoryRequest
from inference_service.pool.hot import HotState
from inference_service.pool.kv import Table
from inference_service.pool.memory import ModelMemory, sizes

_CHUNK = 2048
_NUMBERS = {"U32": np.uint32, "F32": np.float32, "BF16": np.uint16, "F16": np.uint16}
"""What tensors of files are in host memory."""


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


class Files:
    """KV of an agent, as it comes from files: blocks, and a window at its cap."""

    def __init__(self, geometry: Geometry, tokens: int, seed: int) -> None:
        self._geometry, self.tokens = geometry, tokens
        self._random = np.random.default_rng(seed)
        self._block = self._tensors(geometry.block_shapes(BLOCK_TOKENS))
        kept = min(tokens, geometry.window + SLACK)
        self.window = self._tensors(geometry.checkpoint_shapes(kept)) if geometry.sliding else None

    def _tensors(self, shapes: TensorShapes) -> HostTensors:
        found: dict[str, npt.NDArray[np.generic]] = {}
        for name, (dtype, shape) in shapes.items():
            words = self._random.integers(1 << 32, size=(*shape[:-1], shape[-1]), dtype=np.uint32)
            found[name] = words.astype(_NUMBERS[dtype])
        return found

    def block(self, index: int) -> HostTensors:
        """What is in a block, which differs from all others."""
        count = min(BLOCK_TOKENS, self.tokens - index * BLOCK_TOKENS)
        return {
            name: (tensor + np.array(index, tensor.dtype))[:, :, :count]
            if name.endswith("weights")
            else tensor[:, :, :count]
            for name, tensor in self._block.items()
        }

    def start(self, blocks: list[int], pieces: list[int]) -> Start:
        """What begins a sequence with all of it in these blocks and pieces."""
        count = -(-self.tokens // BLOCK_TOKENS)
        files = [(block, self.block(index)) for index, block in enumerate(blocks[:count])]
        return Start(blocks, pieces, self.tokens, files=files, window_file=self.window, arrays=False)


def q4_agent(geometry: Geometry, tokens: int) -> dict[str, int]:
    """An agent in the engine's blocks: theirs, the memory that they took, and a window as it is saved."""
    files, before = Files(geometry, tokens, seed=0), _active()
    places = Places(geometry)
    place = places.take(tokens, checkpoints=0)
    sequence = places.store.started(files.start(place.blocks, place.pieces))
    checkpoint = places.store.capture(sequence)
    active = _active() - before
    saved = places.store.read_checkpoint(checkpoint) if checkpoint else {}
    return {
        "bytes": place.nbytes(len(place.blocks), checkpoint),
        "active": active,
        "saved_window": sum(len(data) for data in saved.values()),
    }


async def fill_pool(name: str, geometry: Geometry, budget: int, tokens: int) -> dict[str, Any]:
    """Take a pool of `budget` bytes, and let agents of `tokens` tokens in until the next would cost another its KV.

    It is split for such agents, as the worker's `typical_tokens` does it. Every second agent has other KV; that of the
    first and the last is read back at the end. Raises RuntimeError where it is not what was written, or the bookkeeping
    does not add up.
    """
    kinds = [Files(geometry, tokens, seed) for seed in (0, 1)]
    resident, before = _resident(), _active()
    memory = ModelMemory(geometry, sizes(0, geometry, tokens, budget, 0, tokens, arrays=False), TurnHints())
    store = KVStore(geometry, memory.sizes.space.blocks, memory.sizes.space.pieces)
    taken, taken_resident = _active() - before, _resident() - resident
    gone: list[int] = []
    memory.admission.growth.evicted = gone.append
    while True:
        agents = len(memory.hot)
        key = AgentKey("benchmark", f"agent-{agents}", name)
        token_ids = range(agents * tokens, (agents + 1) * tokens)
        await _keep(memory, store, key, kinds[agents % 2], token_ids)
        if gone:
            break
    memory.check_integrity([])
    if memory.pool.broken.is_set():
        raise RuntimeError(f"the pool of {name} does not add up: see the log")
    kept = [key for key in memory.hot if isinstance(key, AgentKey)]
    for key in {*kept[:2], *kept[-3:-1]}:
        state = memory.hot.get(key)
        assert state is not None
        _compare(store, state, kinds[int(key.agent_id.removeprefix("agent-")) % 2])
    found = {
        "agents": agents,
        "blocks": memory.sizes.space.blocks,
        "pieces": memory.sizes.space.pieces,
        "arrays": store.nbytes,
        "active": taken,
        "resident": taken_resident,
        "active_when_full": _active() - before,
    }
    store.close()
    return found


async def _keep(memory: ModelMemory, store: KVStore, key: AgentKey, files: Files, token_ids: range) -> None:
    """What the worker does with a turn: room, a sequence in it, and at its end a name for every block."""
    names = [header.chain_hash for header in headers("benchmark", key.namespace, token_ids)]
    room = await memory.admission.reserve(MemoryRequest(key, names, len(token_ids)), seconds=1.0)
    sequence = store.started(files.start(list(room.places), room.pieces))
    checkpoint = store.capture(sequence) or Checkpoint(0, 0, ())
    table = Table(sequence.length, tuple(sequence.full.blocks), checkpoint.tokens, checkpoint.pieces)
    table = memory.pool.publish(names, room.claim(memory.pool, table))
    memory.hot.put(key, HotState(Version(key.agent_id, 1), Ledger(), table))
    memory.admission.release(room)


def _compare(store: KVStore, state: HotState, wrote: Files) -> None:
    table = state.table
    for index, block in enumerate(table.blocks):
        expected = wrote.block(index)
        count = next(iter(expected.values())).shape[2]
        _check_same(f"block {index}", store.read_block(block, count), expected)
    if table.pieces and wrote.window is not None:
        checkpoint = Checkpoint(table.tokens, table.window_tokens, table.pieces)
        _check_same("the window", store.read_checkpoint(checkpoint), wrote.window)


def _check_same(what: str, found: dict[str, bytes], expected: HostTensors) -> None:
    if found != {name: tensor.tobytes() for name, tensor in expected.items()}:
        raise RuntimeError(f"{what} of an agent in the pool is not what was written")


def _chunks(tokens: int) -> Iterator[int]:
    for first in range(0, tokens, _CHUNK):
        yield min(_CHUNK, tokens - first)


def _active() -> int:
    gc.collect()
    mx.clear_cache()
    return int(mx.get_active_memory())


def _resident() -> int:
    return int(psutil.Process().memory_info().rss)
