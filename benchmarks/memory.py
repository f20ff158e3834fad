"""KV bytes per agent, Q4 against fp16, and how many agents fit in a budget: of real caches, and of a real pool.

    agentmem bench memory [--budget 10.2e9] [--tokens 8192] [--lengths 4096 8192 16384 32768] [--models llama-3.1-8b …]

Q4 is what the engine keeps, also in a pool of --budget bytes (the paper's on its Mac) that is filled until an agent
would lose its KV; fp16 is what mlx-lm's default caches keep. Weights are never computed. Fails where the pool holds
other agents than the worker says, or its memory is 2 % off. On a CPU scales are measured in float32, too.
"""

import argparse
import asyncio
import gc
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from agentmem.kv.blockfile import BLOCK_TOKENS
from agentmem.kv.hints import TurnHints
from agentmem.kv.ledger import Ledger, Version
from agentmem.validation import AgentKey
from benchmarks import options, results
from benchmarks.random_models import GEOMETRIES
from benchmarks.tables import Table
from inference_service.engine.attention import AttentionBackend
from inference_service.engine.geometry import Geometry
from inference_service.engine.paged.sequence import Checkpoint
from inference_service.engine.paged.store import KVStore
from inference_service.memory.restore import headers
from inference_service.models.capability import QuantizationSettings, judged
from inference_service.models.latents import keep_latents
from inference_service.pool.admission import MemoryRequest
from inference_service.pool.hot import HotState
from inference_service.pool.kv import Table as KVTable
from inference_service.pool.memory import TYPICAL_TOKENS, ModelMemory, Sizes, agents_that_fit, sizes

TOLERANCE = 0.02
MODELS = tuple(name for name, config in GEOMETRIES.items() if config["model_type"] != "qwen3_next")
"""Their memory is KV alone."""
_DTYPES = {"bfloat16": mx.bfloat16, "float32": mx.float32}
_CHUNK = 2048
Figures = dict[str, Any]


@dataclass(frozen=True)
class Model:
    """A network whose weights are never computed, and the shape of its KV; `plain` is that of mlx-lm's caches."""

    name: str
    network: Any
    geometry: Geometry
    plain: Geometry


def model_of(name: str, dtype: mx.Dtype) -> Model:
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


def fp16_bytes(geometry: Geometry, tokens: int, *, capped: bool = True) -> int:
    whole = -(-tokens // BLOCK_TOKENS) * BLOCK_TOKENS
    return sum(
        2 * len(each.layers) * each.kv_heads * (each.k_dim + each.v_dim) * kept
        for each in geometry.groups
        for kept in [min(tokens, each.window) if each.window and capped else whole]
    )


def fp16_measured(model: Model, tokens: int) -> int:
    """Return the bytes of an agent in mlx-lm's own caches when they are filled."""
    caches, geometry = make_prompt_cache(model.network), model.plain
    for layer, cache in enumerate(caches):
        group = geometry.sliding if geometry.sliding and layer in geometry.sliding.layers else geometry.full
        for count in (*(min(_CHUNK, tokens - 1 - first) for first in range(0, tokens - 1, _CHUNK)), 1):
            cache.update_and_fetch(
                mx.ones((1, group.kv_heads, count, group.k_dim), mx.float16),
                mx.ones((1, group.kv_heads, count, group.v_dim), mx.float16),
            )
            mx.eval(cache.keys, cache.values)
    return sum(int(array.nbytes) for cache in caches for array in (cache.keys, cache.values))


def q4_bytes(geometry: Geometry, tokens: int) -> int:
    """Return the bytes of an agent at rest in the engine's store."""
    blocks, pieces = -(-tokens // BLOCK_TOKENS), geometry.checkpoint_pieces
    store = KVStore(geometry, blocks, pieces)
    held, checkpoint = blocks * store.full.layout.nbytes, _at_rest(store, range(blocks), range(pieces), tokens)
    if checkpoint is not None and store.windows is not None:
        held += len(checkpoint.pieces) * store.windows.layout.nbytes
    store.close()
    return held


async def fill_pool(name: str, geometry: Geometry, split: Sizes, tokens: int) -> dict[str, int]:
    """Fill a pool until the next agent would cost another its KV. Raises RuntimeError."""
    before, memory = _active(), ModelMemory(geometry, split, TurnHints())
    store = KVStore(geometry, memory.sizes.space.blocks, memory.sizes.space.pieces)
    taken, gone = _active() - before, list[int]()
    memory.admission.growth.evicted = gone.append
    while True:
        agents = len(memory.hot)
        key = AgentKey("benchmark", f"agent-{agents}", name)
        await _keep(memory, store, key, range(agents * tokens, (agents + 1) * tokens))
        if gone:
            break
    memory.check_integrity()
    if memory.pool.broken.is_set():
        raise RuntimeError(f"the pool of {name} does not add up: see the log")
    found = {"agents": agents, "arrays": store.nbytes, "active": taken, "active_when_full": _active() - before}
    store.close()
    return found


async def _keep(memory: ModelMemory, store: KVStore, key: AgentKey, token_ids: range) -> None:
    names = [header.chain_hash for header in headers("benchmark", key.namespace, token_ids)]
    room = await memory.admission.reserve(MemoryRequest(key, names, len(token_ids)), seconds=1.0)
    checkpoint = _at_rest(store, room.places, room.pieces, len(token_ids))
    window = (checkpoint.tokens, checkpoint.pieces) if checkpoint is not None else (0, ())
    table = room.claim(memory.pool, KVTable(len(token_ids), room.places, *window))
    memory.hot.put(key, HotState(Version(key.agent_id, 1), Ledger(), memory.pool.publish(names, table)))
    memory.admission.release(room)


def _at_rest(store: KVStore, blocks: Sequence[int], pieces: Sequence[int], tokens: int) -> Checkpoint | None:
    sequence = store.sequence(blocks, pieces)
    if sequence.window is not None:
        sequence.window.slide(tokens)
    sequence.length = tokens
    return store.checkpoints.capture(sequence, last=True)


def _active() -> int:
    gc.collect()
    mx.clear_cache()
    return int(mx.get_active_memory())


def check(what: str, measured: int, expected: int, tolerance: float = 0.0) -> None:
    if abs(measured - expected) > tolerance * expected:
        raise RuntimeError(f"{what}: measured {measured}, expected {expected}")


async def of_model(name: str, dtypes: Iterable[str], lengths: Sequence[int], tokens: int, budget: int) -> Figures:
    found: Figures = {}
    for dtype in dtypes:
        model = model_of(name, _DTYPES[dtype])
        geometry, split = model.geometry, sizes(0, model.geometry, tokens, budget, tokens)
        if not agents_that_fit(split.space, geometry, tokens):
            raise SystemExit(f"{budget / 1e9:g} GB hold no agent of {tokens} tokens of {name}: raise --budget")
        pool, what = await fill_pool(name, geometry, split, tokens), f"{name}, {dtype}"
        check(f"agents of the pool ({what})", pool["agents"], agents_that_fit(split.space, geometry, tokens))
        check(f"memory that the pool took ({what})", pool["active"], pool["arrays"], TOLERANCE)
        check(f"memory when the pool is full ({what})", pool["active_when_full"], pool["active"], TOLERANCE)
        default = sizes(0, geometry, tokens, budget, TYPICAL_TOKENS)
        found[dtype] = {
            "token": geometry.bytes_per_token,
            "agents": {str(length): q4_bytes(geometry, length) for length in lengths},
            "fit": budget // q4_bytes(geometry, tokens),
            "default_fit": agents_that_fit(default.space, geometry, tokens),
            "pool": pool,
        }
    plain, sliding = model.plain, model.plain.sliding
    for length in (each for each in lengths if fp16_bytes(plain, each) <= budget):
        check(f"fp16 of {length} tokens ({name})", fp16_measured(model, length), fp16_bytes(plain, length))
    layers = {"full": len(plain.full.layers), "sliding": len(sliding.layers) if sliding else 0, "window": plain.window}
    grown = fp16_bytes(plain, plain.window + 2 * BLOCK_TOKENS) - fp16_bytes(plain, plain.window + BLOCK_TOKENS)
    found["fp16"] = {
        "token": grown // BLOCK_TOKENS,
        "agents": {str(length): fp16_bytes(plain, length) for length in lengths},
        "fit": budget // fp16_bytes(plain, tokens),
        "uncapped_fit": budget // fp16_bytes(plain, tokens, capped=False),
    }
    return {"layers": layers, **found}


def tables(figures: Figures) -> list[Table]:
    of_lengths, of_agents = [], []
    for name, row in figures["models"].items():
        fp16, layers = row["fp16"], row["layers"]
        q4 = row["bfloat16"]
        kinds = f"{layers['full']} + {layers['sliding']} of {layers['window']}" if layers["sliding"] else layers["full"]
        pairs = [(fp16["agents"][length], q4["agents"][length]) for length in fp16["agents"]]
        cells = [f"{a / 1e6:.0f} → {b / 1e6:.0f} MB ({b / a:.3f})" for a, b in pairs]
        of_lengths.append((name, str(kinds), f"{fp16['token'] / 1024:.1f} → {q4['token'] / 1024:.1f} KiB", *cells))
        for dtype in (each for each in _DTYPES if each in row):
            found, pool = row[dtype], row[dtype]["pool"]
            fits = (fp16["uncapped_fit"], fp16["fit"], found["fit"], found["default_fit"], pool["agents"])
            of_agents.append((f"{name}, {dtype} scales", *map(str, fits), f"{pool['active'] / 1e9:.3f} GB"))
    tokens = figures["tokens"]
    columns = ("fp16, sliding layers at full length", "fp16", "Q4 by bytes", "Q4, a pool by default")
    return [
        Table(
            "KV of one agent: fp16 → Q4 with 16-bit scales",
            ("model", "layers", "a token, full layers", *(f"{length / 1024:g}K" for length in figures["lengths"])),
            of_lengths,
            "fp16 as mlx-lm's default caches keep it; sliding layers keep their window there, and window + 256 tokens "
            "in Q4, in whole pieces. With float32 scales (CPU) Q4 takes 1.11 times as much. Of multi-head latent "
            "attention the engine keeps latents, and mlx-lm K and V of each head.",
        ),
        Table(
            f"Agents of {tokens} tokens in {figures['budget'] / 1e9:g} GB",
            ("model", *columns, f"Q4, --typical-tokens {tokens}, measured", "its pool, measured"),
            of_agents,
            f"A hybrid model's pool has a window to each {TYPICAL_TOKENS} tokens of blocks by default, and so holds "
            "fewer long agents than their bytes alone say; --typical-tokens is how long they are. Measured: a real "
            "pool split so, filled until an agent would have lost its KV.",
        ),
    ]


async def main(arguments: argparse.Namespace) -> int:
    dtypes = ["bfloat16"] if results.backend() == "gpu" else ["bfloat16", "float32"]
    output, budget = arguments.output or f"memory-{results.backend()}", int(arguments.budget)
    figures: Figures = {"budget": budget, "tokens": arguments.tokens, "lengths": arguments.lengths, "models": {}}
    for name in arguments.models:
        figures["models"][name] = await of_model(name, dtypes, arguments.lengths, arguments.tokens, budget)
        results.write(output, figures)
    return results.conclude(output, figures, tables(figures))


def parser() -> argparse.ArgumentParser:
    found = options.parser(__doc__, "memory-BACKEND")
    found.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    found.add_argument("--lengths", type=int, nargs="+", default=[4096, 8192, 16384, 32768])
    found.add_argument("--tokens", type=int, default=8192, help="of each agent in the pool")
    found.add_argument("--budget", type=float, default=10.2e9, help="bytes of the pool")
    return found


if __name__ == "__main__":
    sys.exit(asyncio.run(main(parser().parse_args())))
