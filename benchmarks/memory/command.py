"""KV bytes per agent, Q4 against fp16, and how many agents fit in a budget: by arithmetic, and in a real pool.

    agentmem bench memory [--budget 10.2e9] [--tokens 8192] [--lengths 4096 8192 16384 32768] [--models llama-3.1-8b …]

Q4 is what the engine keeps: blocks of its store, and its own pool of --budget bytes (the paper's on its Mac), into
which agents of --tokens tokens are let until the next one would cost another its KV. fp16 is what mlx-lm's own default
caches keep of the same model: they, too, drop what sliding layers no longer see. Both are filled with tokens of the
model's real shapes; weights are never computed, because KV does not depend on how many there are. What is larger than
the budget is left out of the measurement. The arithmetic comes from the published configurations alone, and the
benchmark fails where it and the measurement differ: at all in agents and in bytes of arrays, by over 2 % in memory
taken.

On a GPU scales are bfloat16, on a CPU float32; there both are measured.
"""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import mlx.core as mx

from benchmarks import options, results
from benchmarks.geometries import GEOMETRIES
from benchmarks.memory import arithmetic, measuring
from benchmarks.memory.arithmetic import Layers
from benchmarks.tables import Table
from inference_service.pool.memory import TYPICAL_TOKENS

TOLERANCE = 0.02
MODELS = tuple(name for name, config in GEOMETRIES.items() if config["model_type"] != "qwen3_next")
"""Those whose memory is KV alone."""
_SCALE_BYTES = {"bfloat16": 2, "float32": 4}
_DTYPES = {"bfloat16": mx.bfloat16, "float32": mx.float32}
Figures = dict[str, Any]


def computed(name: str, lengths: Sequence[int], tokens: int, budget: int) -> Figures:
    """All that arithmetic says of a model."""
    layers = Layers.of(GEOMETRIES[name])
    found: Figures = {
        "layers": asdict(layers),
        "fp16": {
            "token": arithmetic.fp16_token(layers),
            "agents": {str(n): arithmetic.fp16_agent(layers, n) for n in lengths},
            "uncapped": {str(n): arithmetic.fp16_uncapped_agent(layers, n) for n in lengths},
            "fit": budget // arithmetic.fp16_agent(layers, tokens),
            "uncapped_fit": budget // arithmetic.fp16_uncapped_agent(layers, tokens),
            "latent": arithmetic.latent_fp16_agent(layers, tokens),
        },
    }
    for dtype, size in _SCALE_BYTES.items():
        found[dtype] = {
            "token": arithmetic.q4_token(layers, size),
            "saved_window": arithmetic.q4_window(layers, size, layers.window + arithmetic.SLACK)
            if layers.sliding
            else 0,
            "agents": {str(n): arithmetic.q4_agent(layers, n, size) for n in lengths},
            "disk": {str(n): arithmetic.q4_disk(layers, n, size) for n in lengths},
            "fit": budget // arithmetic.q4_agent(layers, tokens, size),
            "pool": asdict(arithmetic.q4_pool(layers, budget, tokens, size)),
            "default_pool": asdict(arithmetic.q4_pool(layers, budget, tokens, size, TYPICAL_TOKENS)),
        }
    return found


def check(what: str, measured: int, expected: int, tolerance: float = 0.0) -> None:
    """Raise RuntimeError where a measurement is not what arithmetic says."""
    if abs(measured - expected) > tolerance * expected:
        raise RuntimeError(f"{what}: measured {measured}, and by arithmetic it is {expected}")


async def measured(model: measuring.Model, dtype: str, row: Figures, lengths: Sequence[int], budget: int) -> Figures:
    """An agent in the engine's store at all lengths, and the pool, checked against the arithmetic of `row`."""
    name, by_arithmetic = f"{model.name}, {dtype}", row["arithmetic"][dtype]
    agents: Figures = {}
    for length in lengths:
        if (expected := by_arithmetic["agents"][str(length)]) > budget:
            continue
        agents[str(length)] = found = measuring.q4_agent(model.geometry, length)
        check(f"bytes of an agent of {length} tokens ({name})", found["bytes"], expected)
        check(f"a saved window ({name})", found["saved_window"], by_arithmetic["saved_window"])
    pool = await measuring.fill_pool(model.name, model.geometry, budget, row["tokens"])
    for fact in ("agents", "blocks", "pieces"):
        check(f"{fact} of the pool ({name})", pool[fact], by_arithmetic["pool"][fact])
    check(f"bytes of the pool's arrays ({name})", pool["arrays"], by_arithmetic["pool"]["bytes"])
    check(f"memory that the pool took ({name})", pool["active"], by_arithmetic["pool"]["bytes"], TOLERANCE)
    check(f"memory when the pool is full ({name})", pool["active_when_full"], pool["active"], TOLERANCE)
    return {"agents": agents, "pool": pool}


def measured_fp16(model: measuring.Model, row: Figures, lengths: Sequence[int], budget: int) -> Figures:
    """mlx-lm's caches at the lengths that fit the budget."""
    agents: Figures = {}
    for length in lengths:
        if (expected := row["arithmetic"]["fp16"]["agents"][str(length)]) <= budget:
            agents[str(length)] = found = measuring.fp16_caches(model, length)
            check(f"fp16 bytes of an agent of {length} tokens ({model.name})", found["bytes"], expected)
    return {"agents": agents}


def _table_of_lengths(figures: Figures) -> Table:
    """Bytes per token and per agent."""
    rows = []
    for name, row in figures["models"].items():
        fp16, q4, layers = row["arithmetic"]["fp16"], row["arithmetic"]["bfloat16"], row["arithmetic"]["layers"]
        kinds = f"{layers['full']} + {layers['sliding']} of {layers['window']}" if layers["sliding"] else layers["full"]
        pairs = [(fp16["agents"][n], q4["agents"][n]) for n in fp16["agents"]]
        cells = [f"{a / 1e6:.0f} → {b / 1e6:.0f} MB ({b / a:.3f})" for a, b in pairs]
        rows.append((name, str(kinds), f"{fp16['token'] / 1024:.1f} → {q4['token'] / 1024:.1f} KiB", *cells))
    lengths = next(iter(figures["models"].values()))["arithmetic"]["fp16"]["agents"]
    return Table(
        "KV of one agent: fp16 → Q4 with 16-bit scales",
        ("model", "layers", "a token, full layers", *(f"{int(n) / 1024:g}K" for n in lengths)),
        rows,
        "fp16 as mlx-lm's default caches keep it; sliding layers keep their window there, and window + 256 tokens in "
        "Q4, in whole pieces. With float32 scales (CPU) Q4 takes 1.11 times as much.",
    )


def _table_of_agents(figures: Figures) -> Table:
    """How many agents fit, and what was measured."""
    rows = []
    for name, row in figures["models"].items():
        by, found = row["arithmetic"], row["measured"]
        fp16 = by["fp16"]
        for dtype in (each for each in _SCALE_BYTES if each in found):
            pool, expected = found[dtype]["pool"], by[dtype]["pool"]
            rows.append(
                (
                    f"{name}, {dtype} scales",
                    str(fp16["uncapped_fit"]),
                    str(fp16["fit"]),
                    str(by[dtype]["fit"]),
                    str(by[dtype]["default_pool"]["agents"]),
                    str(expected["agents"]),
                    str(pool["agents"]),
                    f"{expected['bytes'] / 1e9:.3f} GB",
                    f"{pool['active'] / 1e9:.3f} GB",
                )
            )
    return Table(
        f"Agents of {figures['tokens']} tokens in {figures['budget'] / 1e9:g} GB",
        (
            "model",
            "fp16, sliding layers at full length",
            "fp16",
            "Q4 by bytes",
            "Q4, a pool by default",
            f"Q4, --typical-tokens {figures['tokens']}",
            "measured agents",
            "pool",
            "measured pool",
        ),
        rows,
        f"A hybrid model's pool has a window to each {TYPICAL_TOKENS} tokens of blocks by default, and so holds fewer "
        "long agents than their bytes alone say; --typical-tokens is how long they are. Measured: a real pool split "
        "so, filled until an agent would have lost its KV. " + _latent_note(figures),
    )


def _latent_note(figures: Figures) -> str:
    for name, row in figures["models"].items():
        if latent := row["arithmetic"]["fp16"]["latent"]:
            q4 = row["arithmetic"]["bfloat16"]["agents"][str(figures["tokens"])]
            kept = (
                "the engine keeps latents," if q4 < latent else "so did the engine when this was measured; latents are"
            )
            return (
                f"{name}: fp16 is mlx-lm's, which keeps K and V of each head; {kept} "
                f"{latent / 1e6:.0f} MB of an agent in fp16, beside {q4 / 1e6:.0f} of Q4 here."
            )
    return ""


def tables(figures: Figures) -> list[Table]:
    """Both."""
    return [_table_of_lengths(figures), _table_of_agents(figures)]


async def main(models: list[str], lengths: list[int], tokens: int, budget: int, output: str) -> int:
    """Compute, measure, print; written after each model; the exit status."""
    every = sorted({*lengths, tokens})
    dtypes = ["bfloat16"] if results.backend() == "gpu" else ["bfloat16", "float32"]
    figures: Figures = {"budget": budget, "tokens": tokens, "models": {}}
    by_arithmetic = {name: computed(name, every, tokens, budget) for name in models}
    if small := [name for name in models if not all(by_arithmetic[name][each]["pool"]["agents"] for each in dtypes)]:
        raise SystemExit(f"{budget / 1e9:g} GB hold no agent of {tokens} tokens of {', '.join(small)}: raise --budget")
    for name in models:
        row: Figures = {"tokens": tokens, "arithmetic": by_arithmetic[name], "measured": {}}
        for dtype in dtypes:
            model = measuring.model_of(name, _DTYPES[dtype])
            row["measured"][dtype] = await measured(model, dtype, row, lengths, budget)
        row["measured"]["fp16"] = measured_fp16(model, row, lengths, budget)
        figures["models"][name] = row
        results.write(output, figures)
    return results.conclude(output, figures, tables(figures))


if __name__ == "__main__":
    parser = options.parser(__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--lengths", type=int, nargs="+", default=[4096, 8192, 16384, 32768])
    parser.add_argument("--tokens", type=int, default=8192, help="of each agent in the pool")
    parser.add_argument("--budget", type=float, default=10.2e9, help="bytes of the pool")
    parser.add_argument("--output", default=f"memory-{results.backend()}")
    given = parser.parse_args()
    sys.exit(asyncio.run(main(given.models, given.lengths, given.tokens, int(given.budget), given.output)))
