"""What a model swap costs, and what it does not: agents' memory comes back with their model.

    agentmem bench swap [--lengths 512 2048 4096] [--runs 3]
    agentmem bench swap --model a=DIR --model b=DIR --long 16384 --runs 2 --output swap-llama-3.1-8b-gpu

Two models, one loaded at a time, by gRPC at the worker. For each length: an agent's first turn on A (cold), its next
one (hot), a turn on B, and the agent's next one on A (swap); then a turn on B, and one of as many tokens on A by an
agent that A does not know (swap and cold prefill). Last, the worker is killed and all agents' next turns are warm. All
follow-up turns have 16 new tokens. Then memory as predicted and as measured, and decoding with both models: together,
by swaps, and one model alone. Without --model both are the demo model under two names, which are two models.

`python -m benchmarks.random_models llama-3.1-8b DIR --seed 1` writes a model of real geometry.
"""

import argparse
import asyncio
import random
import sys
import time
from statistics import median
from typing import Any

from rich.console import Console

from agentmem.v1 import types_pb2
from benchmarks import options, results
from benchmarks.models import DEMO, model_name
from benchmarks.prompts import token_ids
from benchmarks.services import Services, serving
from benchmarks.tables import Table, spread
from benchmarks.turns import Turn

NEW = 16
AGENTS = 8
_STAGES = ("open", "leave", "read", "self-test", "pool")


class Swaps:
    """Turns on two models of one worker. `names` are A and B."""

    def __init__(self, services: Services, names: tuple[str, str]) -> None:
        self._services = services
        self._names = names
        self._random = random.Random(1)

    def tokens(self, count: int) -> types_pb2.TokenIds:
        """So many tokens that nobody has seen."""
        return types_pb2.TokenIds(ids=token_ids(count, self._random.random()))

    def more(self) -> types_pb2.Append:
        """A next turn's new text, of about 16 tokens by bytes or words."""
        return types_pb2.Append(text=" ".join(self._random.choice("abcdefgh") for _ in range(NEW // 2)))

    async def swapped(self, model: str, agent: str, **arguments: Any) -> tuple[Turn, dict[str, float]]:
        """A turn on a model that is not loaded, and what of its time the swap took, by stage."""
        wall, sent = time.time(), time.monotonic()
        written = await self._services.metric("agentmem_cache_store_seconds_sum")
        watching = asyncio.create_task(self._services.watch_load(model))
        await asyncio.sleep(0)
        turn = await self._services.turn(model, agent, **arguments)
        stages = dict(_seconds(await watching, sent))
        gone = self._services.logged("model unloaded", wall)
        loaded = self._services.logged("model loaded", wall)
        return turn, stages | {
            "writing": await self._services.metric("agentmem_cache_store_seconds_sum") - written,
            "until_unloaded": gone[-1]["at"] - wall if gone else 0.0,
            "load": loaded[-1]["seconds"],
        }

    async def one(self, tokens: int, run: int) -> dict[str, Any]:
        """One agent, from its first turn to its next one after a swap; and a stranger of its length after another."""
        a, b = self._names
        agent, services = f"agent-{tokens}-{run}", self._services
        cold = await services.turn(a, agent, token_ids=self.tokens(tokens))
        hot = await services.turn(a, agent, append=self.more())
        await self.swapped(b, f"{agent} on B", token_ids=self.tokens(NEW))
        swap, stages = await self.swapped(a, agent, append=self.more())
        if swap.tier != "warm" or swap.reused < tokens:
            raise RuntimeError(f"the agent did not come back with its model: {swap}")
        await self.swapped(b, f"{agent} on B", append=self.more())
        stranger, _ = await self.swapped(a, f"{agent}'s stranger", token_ids=self.tokens(swap.prompt))
        return {
            "prompt_tokens": swap.prompt,
            "cold": cold.first,
            "hot": hot.first,
            "swap": swap.first,
            "swap_restoring": swap.load,
            "swap_and_cold": stranger.first,
            "memory_kept": stranger.first / swap.first,
            **{f"swap_{name}": seconds for name, seconds in stages.items()},
        }

    async def after_restart(self, lengths: list[int], runs: int) -> dict[int, list[float]]:
        """TTFT of all agents' next turns after a SIGKILL of the worker: warm without a swap."""
        await asyncio.sleep(1.0)
        await self._services.kill("worker")
        await self._services.start("worker")
        await self._services.turn(self._names[0], "warm-up", token_ids=self.tokens(64))
        found: dict[int, list[float]] = {}
        for tokens in lengths:
            for run in range(runs):
                turn = await self._services.turn(self._names[0], f"agent-{tokens}-{run}", append=self.more())
                if turn.tier != "warm":
                    raise RuntimeError(f"the restart was not warm: {turn}")
                found.setdefault(tokens, []).append(turn.first)
        return found

    async def together(self, agents: dict[str, int], tokens: int, name: str) -> float:
        """Tokens a second of so many agents by model, from the first request until the last has ended."""
        began = time.monotonic()
        turns = await asyncio.gather(
            *(
                self._services.turn(model, f"{name} {number}", tokens, token_ids=self.tokens(64))
                for model, count in agents.items()
                for number in range(count)
            )
        )
        return sum(turn.generated for turn in turns) / (time.monotonic() - began)

    async def memory(self, long: int) -> dict[str, int]:
        """The prediction for A, and MLX's peak after each of: load, a chunk of 2048, a long prompt, 8 agents."""
        model = await self._services.describe(self._names[0])
        memory = model.memory
        found = {
            "weight_bytes": memory.weight_bytes,
            "activation_bytes": memory.activation_bytes,
            "pool_bytes": memory.pool_bytes,
            "batch_bytes": memory.batch_bytes,
            "kv_bytes_per_token": model.kv_bytes_per_token,
            "context_length": model.context_length,
            "long": long,
            "idle_active": await self._mlx("active"),
            "peak_after_load": await self._mlx("peak"),
        }
        await self._services.turn(self._names[0], "chunk", 1, token_ids=self.tokens(2049))
        found["peak_after_chunk"] = await self._mlx("peak")
        await self._services.turn(self._names[0], "long", 1, token_ids=self.tokens(long))
        found["peak_after_long"] = await self._mlx("peak")
        await self.together({self._names[0]: AGENTS}, 64, "measured")
        found["peak_after_decode"] = await self._mlx("peak")
        over = found["peak_after_decode"] - found["idle_active"]
        found["over_idle"] = over
        found["over_idle_without_kv"] = over - long * model.kv_bytes_per_token
        return found

    async def _mlx(self, kind: str) -> int:
        return int(await self._services.metric("agentmem_mlx_memory_bytes", kind=kind))


def _seconds(stages: list[tuple[str, float]], sent: float) -> list[tuple[str, float]]:
    """Seconds by stage. The first "wait" and "fetch" are opening; the last is for others to leave."""
    names = [name for name, _ in stages]
    read = names.index("read")
    opened = max((at for name, at in stages[:read] if name == "wait"), default=sent)
    times = {"open": (sent, opened), "leave": (opened, stages[read][1])}
    for (name, at), (_, until) in zip(stages[read:], stages[read + 1 :], strict=False):
        times[name] = (at, until)
    return [(name, end - begin) for name, (begin, end) in times.items()]


def tables(figures: dict[str, Any]) -> list[Table]:
    """First tokens around a swap and where its time goes, decoding with two models, and memory."""
    firsts = ("hot", "warm_after_restart", "swap", "swap_and_cold")
    rows, spent = [], []
    for row in figures["swaps"].values():
        tokens = f"{row['prompt_tokens']['median']:.0f}"
        times = (_milliseconds(row[name]) for name in firsts)
        rows.append((tokens, *times, spread(row["memory_kept"], 1, "x")))
        stages = (_milliseconds(row[f"swap_{stage}"]) for stage in _STAGES)
        spent.append((tokens, *stages, _milliseconds(row["swap_restoring"])))
    columns = ("tokens of the agent", "hot", "after a restart", "after a swap", "after a swap, unknown", "gain")
    memory = figures["memory"]
    note = f"computing: {memory['activation_bytes']} bytes predicted, {memory['over_idle_without_kv']} measured"
    decode = [(name, spread(row)) for name, row in figures["decode"].items()]
    decode.append(("two models over one", spread(figures["two_models_to_one"], 2, "x")))
    return [
        Table("Time to first token", columns, rows, "The gain is a ratio within a run; the rest are medians."),
        Table("Where a swap's time goes", ("tokens of the agent", *_STAGES, "restore"), spent),
        Table("Decoding with two models", ("", "tokens/s"), decode, note),
    ]


def _milliseconds(summary: dict[str, Any]) -> str:
    return f"{summary['median'] * 1000:.0f} ms"


async def swaps(models: list[str], arguments: argparse.Namespace, flags: list[str]) -> dict[str, Any]:
    """Swaps and restarts, and decoding by swaps."""
    names = (model_name(models[0]), model_name(models[1]))
    async with serving(models, *flags) as services:
        measured = Swaps(services, names)
        await measured.one(128, -1)  # Kernels are compiled, and measurements remembered.
        rows: dict[int, list[dict[str, Any]]] = {tokens: [] for tokens in arguments.lengths}
        for run in range(arguments.runs):
            for tokens in arguments.lengths:
                rows[tokens].append(await measured.one(tokens, run))
        mixed = {names[0]: AGENTS // 2, names[1]: AGENTS // 2}
        decoded = [await measured.together(mixed, arguments.tokens, f"mixed {run}") for run in range(arguments.runs)]
        await services.watch_load(names[0])
        warm = await measured.after_restart(arguments.lengths, arguments.runs)
    for tokens, samples in rows.items():
        for sample, first in zip(samples, warm[tokens], strict=True):
            sample["warm_after_restart"] = first
    summaries = {
        str(tokens): {name: results.summary([sample.get(name, 0.0) for sample in samples]) for name in samples[0]}
        for tokens, samples in rows.items()
    }
    return {"swaps": summaries, "decode": {"two models by swaps": results.summary(decoded)}}


async def resident(models: list[str], arguments: argparse.Namespace, flags: list[str]) -> dict[str, Any]:
    """Memory of one model, and decoding with both models in memory."""
    names = (model_name(models[0]), model_name(models[1]))
    async with serving(models, *flags, "--loaded-models", "2") as services:
        described = await services.describe(names[0])
        measured = Swaps(services, names)
        memory = await measured.memory(min(arguments.long, described.context_length - 8))
        await services.watch_load(names[1])
        ways = {
            "one model, 8 agents": {names[0]: AGENTS},
            "two models, 4 agents each": {names[0]: AGENTS // 2, names[1]: AGENTS // 2},
        }
        samples: dict[str, list[float]] = {way: [] for way in ways}
        for run in range(-1, arguments.runs):
            for way, agents in ways.items():
                speed = await measured.together(agents, arguments.tokens, f"{way} {run}")
                if run >= 0:
                    samples[way].append(speed)
    ratios = [two / one for one, two in zip(*samples.values(), strict=True)]
    decode = {way: results.summary(each) for way, each in samples.items()}
    return {"memory": memory, "decode": decode, "two_models_to_one": results.summary(ratios), "dtype": described.dtype}


async def main(arguments: argparse.Namespace) -> None:
    """Measure, print, write."""
    models = arguments.model or [f"a={DEMO}", f"b={DEMO}"]
    if len(models) != 2:
        raise SystemExit("give --model NAME=DIRECTORY twice, or not at all")
    flags = ["--context-length", str(arguments.context)] if arguments.context else []
    began = time.monotonic()
    swapping = await swaps(models, arguments, flags)
    staying = await resident(models, arguments, flags)
    found = {**staying, **swapping, "decode": {**staying["decode"], **swapping["decode"]}}
    found["asked"] = {"lengths": arguments.lengths, "runs": arguments.runs, "tokens": arguments.tokens}
    found["seconds"] = time.monotonic() - began
    results.conclude(arguments.output, found, tables(found))
    kept = median(row["memory_kept"]["median"] for row in found["swaps"].values())
    Console().print(f"an agent's memory makes its first token after a swap {kept:.1f} times as early")


if __name__ == "__main__":
    parser = options.parser(__doc__)
    parser.add_argument("--model", action="append", help="NAME=DIRECTORY; twice")
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 2048, 4096])
    parser.add_argument("--runs", type=options.at_least(1), default=3)
    parser.add_argument("--tokens", type=int, default=128, help="that each agent generates in a round of decoding")
    parser.add_argument("--long", type=int, default=8000, help="tokens of the prompt whose memory is measured")
    parser.add_argument("--context", type=int, help="tokens of context (default: what the models say)")
    parser.add_argument("--output", default="swap", help="name of the file under benchmarks/results")
    sys.exit(asyncio.run(main(parser.parse_args())))
