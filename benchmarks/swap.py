"""The cost of a model swap: agents' memory comes back with their model.

    agentmem bench swap [--lengths 512 2048 4096] [--runs 3]
    agentmem bench swap --model a=DIR --model b=DIR --lengths 2048 8192 16384 --output swap-llama-3.1-8b-gpu

At a worker that loads one of two models at a time: an agent's next turn on A while it is hot, after a turn on B, and
after a restart; and a turn of as many tokens that A does not know, after a turn on B. Without --model both are the demo
model. `python -m benchmarks.random_models llama-3.1-8b DIR --seed 1` writes a model of real geometry.
"""

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Sequence
from typing import Any

from agentmem.channels import closing_stream, connect
from agentmem.v1 import inference_pb2_grpc, model_pb2, model_pb2_grpc, types_pb2
from benchmarks import options, results, turns
from benchmarks.models import DEMO, model_name
from benchmarks.nodes import worker
from benchmarks.prompts import token_ids
from benchmarks.tables import Table, spread
from benchmarks.turns import Turn

NEW = 16
_STAGES = ("open", "leave", "read", "prove", "pool")


async def watch_load(worker: str, model: str) -> list[tuple[str, float]]:
    """Load a model; return the stages with the monotonic time at which each began."""
    stages: list[tuple[str, float]] = []
    async with connect(worker) as channel:
        request = model_pb2.LoadModelRequest(model_id=model)
        async with closing_stream(model_pb2_grpc.ModelServiceStub(channel).LoadModel(request)) as events:
            async for event in events:
                if not stages or stages[-1][0] != event.stage:
                    stages.append((event.stage, time.monotonic()))
    return stages


class Swaps:
    """Turns on two models of the worker at an address. `names` are A and B."""

    def __init__(self, worker: str, names: tuple[str, str]) -> None:
        self._worker, self._names, self._random = worker, names, random.Random(1)

    async def turn(self, model: str, agent: str, **arguments: Any) -> Turn:
        arguments |= {"max_tokens": 4, "sampling": types_pb2.Sampling(ignore_eos=True)}
        async with connect(self._worker) as channel:
            return await turns.ask(inference_pb2_grpc.InferenceServiceStub(channel), model, agent, **arguments)

    def tokens(self, count: int) -> types_pb2.TokenIds:
        return types_pb2.TokenIds(ids=token_ids(count, self._random.random()))

    def more(self) -> types_pb2.Append:
        """Return a next turn's text, of about 16 tokens by bytes or words."""
        return types_pb2.Append(text=" ".join(self._random.choice("abcdefgh") for _ in range(NEW // 2)))

    async def swapped(self, model: str, agent: str, **arguments: Any) -> tuple[Turn, dict[str, float]]:
        """Take a turn on a model that is not loaded; return seconds of the swap by stage, too."""
        sent = time.monotonic()
        watching = asyncio.create_task(watch_load(self._worker, model))
        await asyncio.sleep(0)
        turn = await self.turn(model, agent, **arguments)
        return turn, by_stage(await watching, sent)

    async def one(self, tokens: int, run: int) -> dict[str, Any]:
        a, b = self._names
        agent = f"agent-{tokens}-{run}"
        await self.turn(a, agent, token_ids=self.tokens(tokens))
        hot = await self.turn(a, agent, append=self.more())
        await self.swapped(b, f"{agent} on B", token_ids=self.tokens(NEW))
        swap, stages = await self.swapped(a, agent, append=self.more())
        if swap.tier != "warm" or swap.reused < tokens:
            raise RuntimeError(f"the agent did not come back with its model: {swap}")
        await self.swapped(b, f"{agent} on B", append=self.more())
        stranger, _ = await self.swapped(a, f"{agent}'s stranger", token_ids=self.tokens(swap.prompt))
        return {
            **{"prompt_tokens": swap.prompt, "hot": hot.first, "swap": swap.first, "swap_restoring": swap.load},
            **{"swap_and_cold": stranger.first, "memory_kept": stranger.first / swap.first},
            **{f"swap_{name}": seconds for name, seconds in stages.items()},
        }

    async def after_restart(self, tokens: int, run: int) -> float:
        turn = await self.turn(self._names[0], f"agent-{tokens}-{run}", append=self.more())
        if turn.tier != "warm":
            raise RuntimeError(f"the restart was not warm: {turn}")
        return turn.first


def by_stage(stages: list[tuple[str, float]], sent: float) -> dict[str, float]:
    """Return seconds by stage. The last "wait" is for others to leave; "measure" of a known model counts as "prove"."""
    names = [name for name, _ in stages]
    read = names.index("read")
    opened = max((at for name, at in stages[:read] if name == "wait"), default=sent)
    found = {"open": opened - sent, "leave": stages[read][1] - opened}
    for (name, at), (_, until) in zip(stages[read:], stages[read + 1 :], strict=False):
        name = "prove" if name == "measure" else name
        found[name] = found.get(name, 0.0) + until - at
    return found


def tables(figures: dict[str, Any]) -> list[Table]:
    firsts, rows, spent = ("hot", "warm_after_restart", "swap", "swap_and_cold"), [], []
    for row in figures["swaps"].values():
        tokens = f"{row['prompt_tokens']['median']:.0f}"
        rows.append((tokens, *(_milliseconds(row[name]) for name in firsts), spread(row["memory_kept"], 1, "x")))
        spent.append((tokens, *(_milliseconds(row[f"swap_{stage}"]) for stage in (*_STAGES, "restoring"))))
    columns = ("tokens of the agent", "hot", "after a restart", "after a swap", "after a swap, unknown", "gain")
    return [
        Table("Time to first token", columns, rows, "The gain is a ratio within a run; the rest are medians."),
        Table("Where a swap's time goes", ("tokens of the agent", *_STAGES, "restore"), spent),
    ]


def _milliseconds(summary: dict[str, Any]) -> str:
    return f"{summary['median'] * 1000:.0f} ms"


async def measure(models: Sequence[str], lengths: Sequence[int], runs: int, flags: Sequence[str]) -> dict[str, Any]:
    names = (model_name(models[0]), model_name(models[1]))
    async with worker(models, "--swap-wait=300", "--min-residency=0", *flags) as node:
        swaps = Swaps(node.doors[0], names)
        await swaps.one(128, -1)
        rows: dict[int, list[dict[str, Any]]] = {tokens: [] for tokens in lengths}
        for run in range(runs):
            for tokens in lengths:
                rows[tokens].append(await swaps.one(tokens, run))
        await watch_load(node.doors[0], names[0])
        await asyncio.sleep(1.0)
        await asyncio.to_thread(node.kill, "worker")
        node.start("worker")
        await node.ready()
        await swaps.turn(names[0], "warm-up", token_ids=swaps.tokens(64))
        for tokens, samples in rows.items():
            for run, sample in enumerate(samples):
                sample["warm_after_restart"] = await swaps.after_restart(tokens, run)
    names_of = {name for samples in rows.values() for sample in samples for name in sample}
    summaries = {
        str(tokens): {name: results.summary([sample.get(name, 0.0) for sample in samples]) for name in sorted(names_of)}
        for tokens, samples in rows.items()
    }
    return {"asked": {"lengths": list(lengths), "runs": runs}, "swaps": summaries}


async def main(arguments: argparse.Namespace) -> None:
    models = arguments.model or [f"a={DEMO}", f"b={DEMO}"]
    if len(models) != 2:
        raise SystemExit("give --model NAME=DIRECTORY twice, or not at all")
    flags = ["--context-length", str(arguments.context)] if arguments.context else []
    found = await measure(models, arguments.lengths, arguments.runs, flags)
    results.conclude(arguments.output, found, tables(found))


if __name__ == "__main__":
    parser = options.parser(__doc__, "swap")
    parser.add_argument("--model", action="append", help="NAME=DIRECTORY; twice")
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 2048, 4096])
    parser.add_argument("--runs", type=options.at_least(1), default=3)
    parser.add_argument("--context", type=int, help="tokens of context (default: what the models say)")
    sys.exit(asyncio.run(main(parser.parse_args())))
