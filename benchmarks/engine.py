"""The engine against mlx-lm over the same weights, in one process and one run.

    agentmem bench engine demo --prefill 1024 2048 --decode 1024 --agents 1 2
    agentmem bench engine llama-3.1-8b
    agentmem bench engine deepseek-v2-lite --layers 2 --prefill 256 --decode 256 --agents 1 2 --alone --resume 256

Contestants are mlx-lm's BatchGenerator over its default caches, and, for one agent, mlx-lm's model over its default
caches and over QuantizedKVCache. Measured are: tokens/s and peak memory over the weights of prompts up to their first
token; tokens/s of agents that generate together; how long KV at rest takes until an agent can go on, in memory and in
files; bytes of KV. Contestants take turns sample by sample, and the first sample of each, which compiles, is kept
apart. In a batch agents differ in length by 16 tokens where KV can be trimmed, as agents do. Geometries stand for
models: their weights are random and 4-bit (`benchmarks/random_models.py`), the demo model's are its own.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import mlx.core as mx
import mlx_lm
from mlx.utils import tree_flatten

from benchmarks import options, results
from benchmarks.contestants import Ours
from benchmarks.mlx_lm_contestants import Alone, MlxLm
from benchmarks.models import DEMO
from benchmarks.prompts import token_ids
from benchmarks.random_models import GEOMETRIES, random_model
from benchmarks.tables import Table
from inference_service.engine.product_speeds import ProductSpeeds
from inference_service.engine.quantization import ROTATED

_T = TypeVar("_T")
Contestant = Ours | MlxLm | Alone

_STAGGER = 16
_WARM_UP = 8
_SPARE = 8
_OTHER = "ratio_to_agentmem, "
_NAMES = ("agentmem", "mlx-lm", "mlx-lm alone", "mlx-lm QuantizedKVCache")
_NOTE = (
    "Medians. Ratios are ours over mlx-lm's BatchGenerator, and over mlx-lm with one sequence and no generator; peaks "
    "are of memory over the weights. –: it cannot, or was not asked."
)


def _speed(tokens: int, sample: dict[str, float]) -> float:
    return tokens / sample["seconds"]


def _steps(running: Any) -> None:
    for _ in range(_WARM_UP):
        running.step()


class Bench:
    def __init__(self, name: str, samples: int, steps: int, layers: int | None = None, scheme: str = "") -> None:
        if name == "demo":
            model, _ = mlx_lm.load(str(DEMO))
            if mx.default_device().type == mx.DeviceType.cpu:
                model.set_dtype(mx.float32)
        else:
            model = random_model(GEOMETRIES[name] | ({"num_hidden_layers": layers} if layers else {}))
            if mx.default_device().type == mx.DeviceType.cpu:
                model.set_dtype(mx.float32)  # As the worker does there; MLX computes no experts in bfloat16.
        with tempfile.TemporaryDirectory() as directory:
            speeds = ProductSpeeds(Path(directory) / "products.json")
            self.ours = Ours(model, speeds)
            self._beside = [Ours(model, speeds, scheme)] if scheme else []
        self.plain = MlxLm(model)
        self.alone = [Alone.plain(model), Alone.quantized(model)]
        if layers:
            name = f"{name}-of-{layers}-layers"
        self.output = f"engine-{name}-{results.backend()}"
        self._samples, self._steps = samples, steps
        self.figures: dict[str, Any] = {
            "device": mx.device_info()["device_name"],
            "weights": sum(array.nbytes for _, array in tree_flatten(model.parameters())),
            "paths": [vars(path) for path in self.ours.paths],
        }
        self._rows: dict[tuple[str, int], Any] = {}

    def prefill(self, lengths: Sequence[int]) -> None:
        for tokens in lengths:
            runs = self._by_turns(
                [self.ours, *self._beside, self.plain, *self.alone],
                partial(self._prefilled, tokens=tokens),
                self._samples,
            )
            self._note("prefill", tokens, runs, partial(_speed, tokens), "tokens_per_second")
            found = self.figures["prefill"][str(tokens)]
            found["peak_over_weights"] = {
                name: max(s["peak"] for s in each) for name, each in runs.items() if isinstance(each, list)
            }
            self._ratio(found["peak_over_weights"])
            self._write()

    def _prefilled(self, contestant: Contestant, tokens: int) -> dict[str, float]:
        self._rows.pop((contestant.name, tokens), None)
        done = contestant.prefill(token_ids(tokens, "prompt"))
        self._rows[contestant.name, tokens] = done.row
        return {"seconds": done.seconds, "peak": done.peak}

    def row(self, contestant: Contestant, tokens: int) -> Any:
        if (contestant.name, tokens) not in self._rows:
            self._prefilled(contestant, tokens)
        return self._rows[contestant.name, tokens]

    def decode(self, agents: int, tokens: int) -> None:
        """Measure agents that generate together, the contestants by turns: a host's speed changes by half within
        seconds.
        """
        contestants = [self.ours, *self._beside, self.plain, *(self.alone if agents == 1 else [])]
        most = _WARM_UP + self._steps * (self._samples + 1) + 2 * agents + _SPARE  # A join takes up to two steps.

        def begin(contestant: Contestant) -> Any:
            running = contestant.running(self._agents(contestant, agents, tokens), most)
            _steps(running)
            return running

        def measure(together: Any) -> dict[str, float]:
            mx.synchronize()
            started = time.perf_counter()
            for _ in range(self._steps):
                together.step()
            return {"seconds": time.perf_counter() - started}

        begun = self._by_turns(contestants, begin, 0)
        running: dict[str, Any] = {name: each if isinstance(each, str) else each[0] for name, each in begun.items()}
        begun.clear()

        runs: dict[str, list[Any] | str] = {n: each if isinstance(each, str) else [] for n, each in running.items()}
        for order in _orders(list(runs), self._samples + 1):
            for name in order:
                if not isinstance(samples := runs[name], str):
                    samples.append(measure(running[name]))
        running.clear()
        tokens_made = agents * self._steps
        self._note("decode", f"{agents} x {tokens}", runs, lambda s: tokens_made / s["seconds"], "tokens_per_second")
        self._write()

    def resume(self, tokens: int) -> None:
        """Measure KV at rest in memory until an agent can go on; bytes of KV."""
        contestants: list[Contestant] = [self.ours, self.plain]
        runs = self._by_turns(contestants, lambda c: {"seconds": c.resume(self.row(c, tokens))}, max(5, self._samples))
        self._note("resume", tokens, runs, lambda s: s["seconds"], "seconds")
        found = {c.name: self.row(c, tokens).nbytes for c in contestants}
        self.figures["kv_bytes"] = {"tokens": tokens, **found}
        self._ratio(self.figures["kv_bytes"])
        self._write()

    def restore(self, tokens: int) -> None:
        """Measure KV in files until an agent can go on, beside computing it."""
        with tempfile.TemporaryDirectory() as directory:
            _, *seconds = self.ours.restored(self.row(self.ours, tokens), Path(directory), max(5, self._samples))
        computed = statistics.median(self._prefilled(self.ours, tokens)["seconds"] for _ in range(self._samples))
        median = statistics.median(seconds)
        found = {"seconds": median, "samples": seconds, "prefill_seconds": computed, "ratio": computed / median}
        self.figures.setdefault("restore", {})[str(tokens)] = found
        print(f"restore {tokens}: {median:.4g} s, {computed / median:.1f}x faster than prefill", flush=True)
        self._write()

    def _agents(self, contestant: Contestant, agents: int, tokens: int) -> list[Any]:
        row = self.row(contestant, tokens)
        stagger = _STAGGER if self.ours.geometry.resumes_anywhere else 0  # rotating caches and states cannot be trimmed
        return [row.shortened(stagger * i) for i in range(agents)]

    def _by_turns(
        self, contestants: Sequence[Any], measure: Callable[[Any], Any], samples: int
    ) -> dict[str, list[Any] | str]:
        """Take a warm-up and so many samples of each; who fails once has the reason instead."""
        runs: dict[str, list[Any] | str] = {contestant.name: [] for contestant in contestants}
        for order in _orders(contestants, samples + 1):
            for contestant in order:
                before = runs[contestant.name]
                if isinstance(before, str):
                    continue
                try:
                    before.append(measure(contestant))
                except (RuntimeError, ValueError, TypeError, NotImplementedError, AttributeError) as error:
                    runs[contestant.name] = f"{type(error).__name__}: {error}"
                mx.clear_cache()
        return runs

    def _note(
        self,
        kind: str,
        key: object,
        runs: dict[str, list[Any] | str],
        value: Callable[[dict[str, float]], float],
        unit: str,
    ) -> None:
        found: dict[str, Any] = {}
        for name, each in runs.items():
            if isinstance(each, str):
                found[name] = {"error": each}
                continue
            first, *counted = each
            found[name] = {
                unit: statistics.median(value(sample) for sample in counted),
                "samples": counted,
                "first": first,
            }
        ratio = {name: each[unit] for name, each in found.items() if unit in each}
        self._ratio(ratio)
        ratios = {name: each for name, each in ratio.items() if name.startswith("ratio")}
        found.update(ratios)
        self.figures.setdefault(kind, {})[str(key)] = found
        shown = [f"{name} {found[name][unit]:.4g}" if unit in found[name] else f"{name} failed" for name in runs]
        shown += [f"{name} {each:.3f}" for name, each in ratios.items()]
        print(f"{kind} {key} in {unit}: {', '.join(shown)}", flush=True)

    def _ratio(self, values: dict[str, Any]) -> None:
        """Add ours over mlx-lm's BatchGenerator, over mlx-lm with one sequence, and over ours with another scheme."""
        others: list[tuple[str, Contestant]] = [("ratio", self.plain), ("ratio_to_alone", self.alone[0])]
        for name, other in [*others, *((f"ratio_to_{each.name}", each) for each in self._beside)]:
            if {self.ours.name, other.name} <= values.keys():
                values[name] = values[self.ours.name] / values[other.name]

    def _write(self) -> None:
        results.write(self.output, self.figures)


def _orders(contestants: Sequence[_T], rounds: int) -> Iterator[Sequence[_T]]:
    """Yield the contestants for each round, every other time backwards: nobody always comes after the same one."""
    for number in range(rounds):
        yield contestants[::-1] if number % 2 else contestants


def tables(figures: dict[str, Any]) -> list[Table]:
    found = []
    for kind, title, what in (
        ("prefill", "Prompts up to their first token", "tokens of the prompt"),
        ("decode", "Agents that generate together", "agents x tokens"),
    ):
        if kind in figures:
            others = dict.fromkeys(key for row in figures[kind].values() for key in row if key.startswith(_OTHER))
            ratios = (
                "ratio",
                "ratio to alone",
                "ratio of peaks",
                *(f"ratio to {each[len(_OTHER) :]}" for each in others),
            )
            columns = (what, *(f"{name}, tokens/s" for name in _NAMES), *ratios)
            rows = [_row(key, row, tuple(others)) for key, row in figures[kind].items()]
            found.append(Table(title, columns, rows, _NOTE))
    rest = []
    for tokens, row in figures.get("resume", {}).items():
        times = (f"{row[name]['seconds'] * 1000:.1f} ms" if "seconds" in row[name] else "–" for name in _NAMES[:2])
        rest.append((f"an agent of {tokens} tokens goes on, from memory", *times))
    for tokens, row in figures.get("restore", {}).items():
        shown = f"{row['seconds'] * 1000:.1f} ms, {row['ratio']:.1f}x faster than to compute it"
        rest.append((f"from files, {tokens} tokens", shown, "–"))
    if size := figures.get("kv_bytes"):
        rest.append((f"KV of {size['tokens']} tokens", *(f"{size[name] / 1e6:.0f} MB" for name in _NAMES[:2])))
    return [*found, *([Table("Agents at rest", ("", *_NAMES[:2]), rest)] if rest else [])]


def _row(key: str, row: dict[str, Any], others: Sequence[str]) -> tuple[str, ...]:
    speeds = (f"{row[name]['tokens_per_second']:.0f}" if _measured(row, name) else "–" for name in _NAMES)
    ratios = [row.get("ratio"), row.get("ratio_to_alone"), row.get("peak_over_weights", {}).get("ratio")]
    ratios += [row.get(other) for other in others]
    return key, *speeds, *("" if ratio is None else f"{ratio:.2f}x" for ratio in ratios)


def _measured(row: dict[str, Any], name: str) -> bool:
    return "tokens_per_second" in row.get(name, {})


def main(arguments: argparse.Namespace) -> None:
    bench = Bench(arguments.model, arguments.samples, arguments.steps, arguments.layers, arguments.scheme)
    bench.prefill(arguments.prefill)
    for tokens in arguments.decode:
        for agents in arguments.agents:
            bench.decode(agents, tokens)
    for tokens in arguments.alone:
        bench.decode(1, tokens)
    bench.resume(arguments.resume)
    bench.restore(arguments.resume)
    results.conclude(bench.output, bench.figures, tables(bench.figures))


if __name__ == "__main__":
    parser = options.parser(__doc__)
    parser.add_argument("model", choices=["demo", *GEOMETRIES])
    parser.add_argument("--layers", type=options.at_least(1), help="of a geometry, fewer than the model has")
    parser.add_argument("--prefill", type=int, nargs="+", default=[1024, 4096, 8192, 16384, 32768])
    parser.add_argument("--decode", type=int, nargs="+", default=[1024, 8192])
    parser.add_argument("--agents", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--alone", type=int, nargs="*", default=[16384], help="lengths for one agent alone")
    parser.add_argument("--resume", type=int, default=16384)
    parser.add_argument("--scheme", choices=[ROTATED], default="", help="of K and V, beside the model's own")
    parser.add_argument("--samples", type=options.at_least(1), default=3)
    parser.add_argument("--steps", type=options.at_least(1), default=32, help="decode steps of one sample")
    main(parser.parse_args())
