"""Short prompts that arrive at once: when they have their first tokens, computed together and one by one.

    agentmem bench arrivals demo
    agentmem bench arrivals llama-3.1-8b --agents 8 --tokens 500
    agentmem bench arrivals smollm2 --agents 8 --context 1000 --tokens 30

In one process over the same weights, by turns: our engine with prompts in a batch, the same engine with one prompt at a
time, and mlx-lm's BatchGenerator. The prompts differ in length by up to a tenth. With --context they are next turns,
behind so much KV that is in memory. The first sample of each, which compiles, is kept apart. Geometries stand for
models: their weights are random and 4-bit.
"""

import argparse
import copy
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
from mlx_lm.generate import BatchGenerator
from mlx_lm.models.cache import make_prompt_cache

from benchmarks import options, results, smollm2
from benchmarks.contestants import Ours, Row
from benchmarks.geometries import GEOMETRIES, random_model
from benchmarks.models import DEMO
from benchmarks.prompts import token_ids
from benchmarks.tables import Claim, Table, conclude
from inference_service.models.proof import Speeds

LEAST_GAIN = 2.0
_TOGETHER, _ONE_BY_ONE, _MLX_LM = "agentmem", "agentmem, one by one", "mlx-lm"


def ours(engine: Ours, contexts: Sequence[Row], prompts: Sequence[Sequence[int]], *, together: bool) -> list[float]:
    """Seconds until the first token behind each context and prompt, in the order in which they come."""
    engine.engine.model.prompts_together = together
    kept = copy.deepcopy([row.caches for row in contexts])
    mx.eval([cache.state for caches in kept for cache in caches if not cache.empty()])
    times: list[float] = []
    started = time.perf_counter()
    turns = [
        engine.job(
            [*row.tokens[: caches[0].offset], *prompt],
            partial(_given, caches),
            1,
            lambda _: times.append(time.perf_counter() - started),
            caches[0].offset,
        )
        for row, caches, prompt in zip(contexts, kept, prompts, strict=True)
    ]
    while not all(turn.future.done() for turn in turns):
        engine.engine.step()
    for turn in turns:
        turn.future.result()
    return times


def _given(caches: Any) -> Any:
    return caches


def theirs(model: Any, contexts: Sequence[Any], prompts: Sequence[Sequence[int]]) -> list[float]:
    """The same of mlx-lm's generator."""
    caches = copy.deepcopy(list(contexts))
    mx.eval([cache.state for row in caches for cache in row if cache.offset])
    generator = BatchGenerator(model, max_tokens=1, prefill_batch_size=len(prompts), completion_batch_size=len(prompts))
    times: list[float] = []
    started = time.perf_counter()
    generator.insert([list(prompt) for prompt in prompts], caches=caches)
    while len(times) < len(prompts):
        times.extend([time.perf_counter() - started] * len(generator.next()[1]))
    return times


def _prefilled(model: Any, context: Sequence[int]) -> list[Any]:
    """mlx-lm's caches of a context."""
    caches: list[Any] = make_prompt_cache(model)
    if context:
        model(mx.array([list(context)]), cache=caches)
        mx.eval([cache.state for cache in caches])
    return caches


def by_turns(ways: dict[str, Callable[[], list[float]]], samples: int) -> dict[str, dict[str, Any]]:
    """A warm-up and so many samples of each."""
    runs: dict[str, list[list[float]]] = {name: [] for name in ways}
    for _ in range(samples + 1):
        for name, run in ways.items():
            runs[name].append(run())
            mx.clear_cache()
    return {
        name: {
            "last_seconds": statistics.median(sample[-1] for sample in counted),
            "mean_seconds": statistics.median(statistics.fmean(sample) for sample in counted),
            "samples": counted,
            "first": first,
        }
        for name, (first, *counted) in runs.items()
    }


def tables(figures: dict[str, Any]) -> list[Table]:
    """First tokens, and how many times as long the others take."""
    runs = figures["runs"]
    best = runs[_TOGETHER]["last_seconds"]
    rows = [
        (name, f"{run['mean_seconds']:.3f} s", f"{run['last_seconds']:.3f} s", f"{run['last_seconds'] / best:.2f}x")
        for name, run in runs.items()
    ]
    columns = ("prompts", "first tokens, on average", "the last first token", "of ours")
    behind = f" behind {context} of KV" if (context := figures.get("context")) else ""
    title = f"{figures['agents']} prompts of {figures['tokens']} tokens{behind} that arrive at once"
    return [Table(title, columns, rows, f"Medians of {figures['counted']} samples, the contestants by turns.")]


def claims(figures: dict[str, Any]) -> list[Claim]:
    """What a batch gains on a fast device; on a CPU only prompts of few tokens are computed in one."""
    runs = figures["runs"]
    gain = runs[_ONE_BY_ONE]["last_seconds"] / runs[_TOGETHER]["last_seconds"]
    text = f"{figures['agents']} prompts at once: the last first token, how many times as soon as one by one"
    return [Claim(text, gain, LEAST_GAIN, at_most=False)] if figures["backend"] == "gpu" else []


def main(arguments: argparse.Namespace) -> int:
    """Measure, print, write; the exit status."""
    if arguments.model in ("demo", "smollm2"):
        model, _ = mlx_lm.load(str(DEMO if arguments.model == "demo" else smollm2.directory()))
    else:
        model = random_model(
            GEOMETRIES[arguments.model] | ({"num_hidden_layers": arguments.layers} if arguments.layers else {})
        )
    if mx.default_device().type == mx.DeviceType.cpu:
        model.set_dtype(mx.float32)  # As the worker does there.
    with tempfile.TemporaryDirectory() as directory:
        engine = Ours(model, Speeds.kept_in(Path(directory)))
    agents, tokens, context = arguments.agents, arguments.tokens, arguments.context
    prompts, contexts = (
        [token_ids(length - length * i // (10 * agents), f"{what} {i}") for i in range(agents)]
        for length, what in ((tokens, "prompt"), (context, "context"))
    )
    rows = [engine.prefill(each).row if each else Row([0], engine.geometry.new_caches()) for each in contexts]
    theirs_kept = [_prefilled(model, each) for each in contexts]
    ways: dict[str, Callable[[], list[float]]] = {
        _TOGETHER: lambda: ours(engine, rows, prompts, together=True),
        _ONE_BY_ONE: lambda: ours(engine, rows, prompts, together=False),
        _MLX_LM: lambda: theirs(model, theirs_kept, prompts),
    }
    figures = {
        "backend": results.backend(),
        "agents": agents,
        "tokens": tokens,
        "context": context,
        "counted": arguments.samples,
        "runs": by_turns(ways, arguments.samples),
    }
    name = arguments.model + (f"-of-{arguments.layers}-layers" if arguments.layers else "")
    name += "-next-turns" if context else ""
    path = results.write(f"arrivals-{name}-{results.backend()}", figures)
    return conclude(tables(figures), path, claims(figures))


if __name__ == "__main__":
    parser = options.parser(__doc__)
    parser.add_argument("model", choices=["demo", "smollm2", *GEOMETRIES])
    parser.add_argument("--layers", type=options.at_least(1), help="of a geometry, fewer than the model has")
    parser.add_argument("--agents", type=options.at_least(2), default=8)
    parser.add_argument("--tokens", type=options.at_least(20), default=500)
    parser.add_argument("--context", type=options.at_least(0), default=0, help="tokens of KV before each prompt")
    parser.add_argument("--samples", type=options.at_least(1), default=5)
    sys.exit(main(parser.parse_args()))
