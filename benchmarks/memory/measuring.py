"""Real KV of a model's geometry, without its weights: mlx-lm's caches, an agent in blocks, and a pool that fills up.

Networks are built from their configuration and never evaluated: they say what caches they want and what shape their KV
has, and that is all that is asked of them. One thread: it is the engine's and the event loop's.
"""

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import mlx.core as mx
import numpy as np
import psutil
from mlx_lm.models.cache import make_prompt_cache

from agentmem.kv.blockfile import BLOCK_TOKENS
from agentmem.kv.hints import TurnHints
from agentmem.kv.ledger import Ledger, Version
from agentmem.validation import AgentKey
from benchmarks.geometries import GEOMETRIES
from inference_service.engine.attention import AttentionBackend
from inference_service.engine.geometry import Geometry, LayerGroup, TensorBytes
from inference_service.engine.paged.layout import HostTensor
from inference_service.engine.paged.sequence import Checkpoint
from inference_service.engine.paged.store import KVStore
from inference_service.engine.quantization import Quantized
from inference_service.memory.restore import headers
from inference_service.models.capability import QuantizationSettings, judged
from inference_service.models.latents import keep_latents
from inference_service.pool.admission import MemoryRequest
from inference_service.pool.hot import HotState
from inference_service.pool.kv import Table
from inference_service.pool.memory import ModelMemory, sizes

_CHUNK = 2048


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
    """An agent in the engine's store: bytes of what it has there, the memory that the store took, and a window's file.

    While it was computed it may have had a piece more than it has at rest.
    """
    before = _active()
    blocks, pieces = -(-tokens // BLOCK_TOKENS), geometry.checkpoint_pieces
    store = KVStore(geometry, blocks, pieces)
    active = _active() - before
    checkpoint = _Content(geometry, 0).write(store, range(blocks), range(pieces), tokens)
    held, saved = blocks * store.full.layout.nbytes, 0
    if checkpoint is not None and store.windows is not None:
        held += len(checkpoint.pieces) * store.windows.layout.nbytes
        saved = sum(len(tensor) for tensor in store.checkpoints.read(checkpoint)().values())
    store.close()
    return {"bytes": held, "active": active, "saved_window": saved}


async def fill_pool(name: str, geometry: Geometry, budget: int, tokens: int) -> dict[str, Any]:
    """Take a pool of `budget` bytes, and let agents of `tokens` tokens in until the next would cost another its KV.

    It is split for such agents, as the worker's `typical_tokens` does it. Every second agent has other KV; that of the
    first and the last is read back at the end. Raises RuntimeError where it is not what was written, or the bookkeeping
    does not add up.
    """
    kinds = [_Content(geometry, seed) for seed in (0, 1)]
    resident, before = _resident(), _active()
    memory = ModelMemory(geometry, sizes(0, geometry, tokens, budget, 0, tokens), TurnHints())
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
        kinds[int(key.agent_id.removeprefix("agent-")) % 2].compare(store, state.table)
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


async def _keep(memory: ModelMemory, store: KVStore, key: AgentKey, content: "_Content", token_ids: range) -> None:
    """Do as the worker does with a turn: room, blocks that are written, a table of them, a name for every block."""
    names = [header.chain_hash for header in headers("benchmark", key.namespace, token_ids)]
    room = await memory.admission.reserve(MemoryRequest(key, names, len(token_ids)), seconds=1.0)
    checkpoint = content.write(store, room.places, room.pieces, len(token_ids))
    window = (checkpoint.tokens, checkpoint.pieces) if checkpoint is not None else (0, ())
    table = room.claim(memory.pool, Table(len(token_ids), room.places, *window))
    memory.hot.put(key, HotState(Version(key.agent_id, 1), Ledger(), memory.pool.publish(names, table)))
    memory.admission.release(room)


class _Content:
    """An agent's blocks' content. Agents of another seed have other content, and so has each block and each layer.

    One layer of each kind is packed, of one block. The others have other codes: to pack all of them would take minutes
    on a CPU, and make tensors of the same sizes.
    """

    def __init__(self, geometry: Geometry, seed: int) -> None:
        mx.random.seed(seed)
        self._geometry = geometry
        self._codecs = dict(zip(geometry.kv_layers, geometry.codecs(), strict=True))
        self._full = [self._packed(group, BLOCK_TOKENS) for group in geometry.full_groups]
        self._window = [self._packed(geometry.sliding, geometry.piece_tokens)] if geometry.sliding else []

    def _packed(self, group: LayerGroup, tokens: int) -> dict[str, HostTensor]:
        """The tensors of a file by name, of so many tokens of a group's layers."""
        keys, values = (
            mx.random.normal((1, group.kv_heads, tokens, width), self._geometry.dtype)
            for width in (group.k_dim, group.v_dim)
        )
        sides = zip("kv", self._codecs[group.layers[0]].encode(keys, values), strict=True)
        found = {}
        for side, packed in sides:
            for part in Quantized._fields:
                array = getattr(packed, part)
                host = np.array(array.view(mx.uint16) if array.dtype.size == 2 else array)
                name = f"{self._geometry.prefix(group)}{side}.{part}"
                found[name] = np.concatenate([_other(host, part, layer) for layer in range(len(group.layers))])
        return found

    def write(self, store: KVStore, blocks: Sequence[int], pieces: Sequence[int], tokens: int) -> Checkpoint | None:
        """Fill a sequence's blocks, and the pieces that its window has then; the checkpoint at its end."""
        sequence = store.sequence(blocks, pieces)
        for number, block in enumerate(blocks):
            store.full.put([(block, 0, self._numbered(self._full, number))])
        if (table := sequence.window) is not None and store.windows is not None:
            table.slide(tokens)
            for number, piece in enumerate(table.blocks, table.first // table.tokens):
                store.windows.put([(piece, 0, self._numbered(self._window, number))])
        sequence.length = tokens
        return store.checkpoints.capture(sequence, last=True)

    def compare(self, store: KVStore, table: Table) -> None:
        """Raise RuntimeError where an agent's blocks and pieces have anything else."""
        for number, block in enumerate(table.blocks):
            count = min(BLOCK_TOKENS, table.tokens - number * BLOCK_TOKENS)
            wanted = {name: t[:, :, :count] for name, t in self._numbered(self._full, number).items()}
            _same(store.read_block(block, count)(), wanted, f"block {number}")
        if table.pieces:
            tokens, start = self._geometry.piece_tokens, table.tokens - table.window_tokens
            first = start // tokens
            parts = [self._numbered(self._window, first + at) for at in range(len(table.pieces))]
            within = slice(start - first * tokens, table.tokens - first * tokens)
            wanted = {name: np.concatenate([part[name] for part in parts], axis=2)[:, :, within] for name in parts[0]}
            found = store.checkpoints.read(Checkpoint(table.tokens, table.window_tokens, table.pieces))()
            _same(found, wanted, "the window")

    @staticmethod
    def _numbered(groups: Sequence[dict[str, HostTensor]], number: int) -> dict[str, HostTensor]:
        """The tensors of the block with a number."""
        return {name: _other(tensor, name, 1000 * number) for group in groups for name, tensor in group.items()}


def _other(tensor: HostTensor, name: str, number: int) -> HostTensor:
    """Other codes; scales and biases are the same."""
    return tensor ^ np.uint32(number) if name.endswith("weights") else tensor  # type: ignore[operator]


def _same(found: TensorBytes, wanted: dict[str, HostTensor], what: str) -> None:
    if found.keys() != wanted.keys() or any(found[name] != tensor.tobytes() for name, tensor in wanted.items()):
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
