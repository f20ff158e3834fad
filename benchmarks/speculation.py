"""Answers that repeat what stands in the context, and prose, with and without speculation.

    agentmem bench speculation [--model NAME=DIRECTORY] [--agents 1 4 8] [--tokens 64]

One agent gets each request by itself; several together, all of one kind, or half of each. Two workers of one model
answer in turns. Quotations and edits repeat code, JSON and prose; prose is greedy and sampled. Steps of several tokens
round otherwise, which may change a close choice: the table has how many tokens are the same. Without --model it is
SmolLM2-135M-Instruct; the demo model quotes nothing.
"""

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from itertools import takewhile
from typing import Any

import httpx

from agentmem.channels import connect
from agentmem.v1 import inference_pb2, inference_pb2_grpc, types_pb2
from benchmarks import nodes, options, results, turns
from benchmarks.models import REAL, model_directory, model_name
from benchmarks.packages import Unavailable
from benchmarks.ports import free_ports
from benchmarks.speculation_requests import REQUESTS, Request, together
from benchmarks.tables import Table, spread
from benchmarks.turns import Turn

WAYS = {"plain": "--no-speculation", "speculative": "--speculation"}
_COUNTED = {name: f"agentmem_speculation_{name}_tokens_total" for name in ("drafted", "accepted")}


class Worker:
    def __init__(self, model: str, inference: "inference_pb2_grpc.InferenceServiceAsyncStub", metrics: str) -> None:
        self._model, self._inference, self._metrics = model, inference, metrics

    async def answer(self, requests: Sequence[Request], tokens: int) -> list[Turn]:
        return list(await asyncio.gather(*(self._take(request, tokens) for request in requests)))

    async def _take(self, request: Request, tokens: int) -> Turn:
        return await turns.ask(
            self._inference,
            self._model,
            messages=turns.chat([("user", request.text)]),
            max_tokens=tokens,
            sampling=types_pb2.Sampling(temperature=request.temperature),
            cache_policy=inference_pb2.CACHE_POLICY_RECOMPUTE,
        )

    async def counts(self) -> dict[str, int]:
        """Return the tokens that were drafted so far, and those of them that were right."""
        async with httpx.AsyncClient(trust_env=False) as http:
            lines = (await http.get(self._metrics)).raise_for_status().text.splitlines()
        return {
            name: sum(int(float(line.split()[-1])) for line in lines if line.startswith(metric))
            for name, metric in _COUNTED.items()
        }


def rate(answers: Sequence[Turn]) -> float:
    """Return tokens per second from the last one's first token until all have ended."""
    begin, end = max(each.arrivals[0] for each in answers), max(each.arrivals[-1] for each in answers)
    return sum(at > begin for each in answers for at in each.arrivals) / (end - begin)


async def measure(workers: Mapping[str, Worker], requests: Sequence[Request], tokens: int, runs: int) -> dict[str, Any]:
    """Answer in turns, after one run to warm up; counts are of the last run."""
    rates: dict[str, list[float]] = {way: [] for way in workers}
    for run in range(runs + 1):
        last = {}
        before = await workers["speculative"].counts()
        for way in [*workers][:: 1 if run % 2 else -1]:
            last[way] = await workers[way].answer(requests, tokens)
            rates[way].append(rate(last[way]))
        after = await workers["speculative"].counts()
    counts = {name: after[name] - before[name] for name in after}
    made = sum(each.generated for each in last["speculative"])
    greedy = not any(request.temperature for request in requests)
    return {
        "agents": len(requests),
        "tokens": made,
        "same_tokens": sum(map(_same, last["plain"], last["speculative"])) if greedy else None,
        **{way: results.summary(each[1:]) for way, each in rates.items()},
        "ratio": results.summary([b / a for a, b in zip(*(each[1:] for each in rates.values()), strict=True)]),
        "steps": made - counts["accepted"],
        **counts,
    }


def _same(plain: Turn, other: Turn) -> int:
    pairs = zip(plain.token_ids, other.token_ids, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def tables(figures: Mapping[str, Any]) -> list[Table]:
    rows = [
        [
            name,
            str(found["tokens"]),
            *(spread(found[way], 1) for way in WAYS),
            spread(found["ratio"], 2, "x"),
            f"{found['tokens'] / found['steps']:.2f}",
            f"{found['accepted']} of {found['drafted']}",
            "–" if found["same_tokens"] is None else str(found["same_tokens"]),
        ]
        for name, found in figures["answers"].items()
    ]
    columns = ("answer", "tokens", "plain tokens/s", "speculative", "ratio")
    title = f"{figures['model']}, {figures['backend'].upper()}; one agent where no more are named"
    note = "The same: tokens before the first that plain steps chose otherwise. Counts are the last run's."
    return [Table(title, (*columns, "tokens a turn's step", "drafts right", "the same"), rows, note)]


async def main(arguments: argparse.Namespace, requests: Sequence[Request] = REQUESTS) -> int:
    name, backend = model_name(arguments.model), results.backend()
    try:
        model = f"{name}={model_directory(arguments.model)}"
    except Unavailable as problem:
        raise SystemExit(f"the model cannot be had: {problem}") from problem
    figures: dict[str, Any] = {"backend": backend, "model": name, "answers": {}}
    output = arguments.output or f"speculation-{backend}"
    async with AsyncExitStack() as stack:
        workers = {}
        for way, flag in WAYS.items():
            address = f"127.0.0.1:{free_ports(1)}"
            flags = (flag, f"--metrics={address}", f"--pool-bytes={arguments.pool_bytes}")
            node = await stack.enter_async_context(nodes.worker([model], *flags))
            channel = await stack.enter_async_context(connect(node.doors[0]))
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            workers[way] = Worker(name, stub, f"http://{address}/metrics")
        for number in arguments.agents:
            for named, (kind, each) in together(requests, number).items():
                found = await measure(workers, each, arguments.tokens, arguments.runs)
                figures["answers"][named] = {"kind": kind, **found}
                results.write(output, figures)
    return results.conclude(output, figures, tables(figures))


def parser() -> argparse.ArgumentParser:
    found = options.parser(__doc__, "speculation-BACKEND")
    found.add_argument("--model", default=REAL[0], help=f"{', '.join(REAL)}, or NAME=DIRECTORY (default: {REAL[0]})")
    found.add_argument(
        "--agents", type=options.at_least(1), nargs="+", default=[1, 4, 8], help="that generate together"
    )
    found.add_argument("--tokens", type=options.at_least(8), default=64, help="of each answer at most")
    found.add_argument("--runs", type=options.at_least(1), default=3)
    found.add_argument("--pool-bytes", type=int, default=256 << 20, help="of each worker's KV")
    return found


if __name__ == "__main__":
    sys.exit(asyncio.run(main(parser().parse_args())))
