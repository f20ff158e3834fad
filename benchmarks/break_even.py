"""The length below which a restore is not worth it: next turns after warm beginnings, restored and computed.

    agentmem bench break-even [--model NAME=DIRECTORY] [--lengths 16 32 64 128 256 512 1024] [--samples 7]

Through the gateway, one turn of 50 new tokens at a time, on a fork each: once with KV restored, with files in the page
cache, once with CACHE_POLICY_RECOMPUTE. `min_restore_tokens` is 1. The first round is not counted.
"""

import argparse
import asyncio
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import options, results
from benchmarks.known_agents import KnownAgents
from benchmarks.live import LiveStack, running
from benchmarks.models import kv_bytes_per_token, model_directory, model_name
from benchmarks.prompts import NEW_TOKENS, Prompts
from benchmarks.tables import Table, milliseconds
from inference_service.engine.device import worth_restoring

LENGTHS = (16, 32, 48, 64, 96, 128, 192, 256, 320, 384, 512, 768, 1024)

Rounds = Mapping[int, Sequence[tuple[float, float]]]
"""By length, the seconds of each round: restored and computed."""


def break_even(rounds: Rounds) -> int | None:
    """The smallest length from which on restoring is faster in the median; None if there is none."""
    found = None
    for length in sorted(rounds, reverse=True):
        restored, computed = (statistics.median(times) for times in zip(*rounds[length], strict=True))
        if restored >= computed:
            break
        found = length
    return found


def summaries(rounds: Rounds) -> dict[str, Any]:
    by_length = {}
    for length, each in rounds.items():
        restored, computed = zip(*each, strict=True)
        by_length[str(length)] = {
            "restored": results.summary(restored),
            "computed": results.summary(computed),
            "ratio": results.summary([a / b for a, b in each]),
        }
    return {"lengths": by_length, "break_even": break_even(rounds)}


def tables(figures: Mapping[str, Any]) -> list[Table]:
    rows = [
        [
            f"{int(length):,}",
            milliseconds(found["restored"]),
            milliseconds(found["computed"]),
            f"{found['ratio']['median']:.2f}x",
        ]
        for length, found in figures["lengths"].items()
    ]
    tokens = figures["break_even"]
    shown = f"more than {max(map(int, figures['lengths'])):,}" if tokens is None else f"{tokens:,}"
    where = f"{figures['model']}, {figures['backend'].upper()}"
    return [
        Table(
            f"Time to first token after a warm beginning, {figures['new_tokens']} new tokens ({where})",
            ("tokens", "restored", "computed", "restored / computed"),
            rows,
            f"Restoring is worth it from {shown} tokens on; the worker's min_restore_tokens is {figures['default']}.",
        )
    ]


async def measure(agents: KnownAgents, length: int, number: int) -> tuple[float, float]:
    times = {}
    for way in ("restored", "computed")[:: 1 if number % 2 else -1]:
        agent = f"{length}, round {number} {way}"
        await agents.fork(f"{length}", agent)
        if way == "restored":
            turn = await agents.next_turn(agent, "warm", length)
        else:
            turn = await agents.recomputed(agent, length)
        times[way] = turn.first
        await agents.evict(agent)
    return times["restored"], times["computed"]


async def measured(stack: LiveStack, arguments: argparse.Namespace) -> dict[str, Any]:
    """All rounds on a stack whose `min_restore_tokens` is 1."""
    lengths, name = sorted(arguments.lengths), model_name(arguments.model)
    found: dict[str, Any] = {
        "model": name,
        "backend": results.backend(),
        "new_tokens": arguments.new_tokens,
        "default": worth_restoring(),
    }
    rounds: dict[int, list[tuple[float, float]]] = {length: [] for length in lengths}
    agents = KnownAgents(stack, Prompts(model_directory(arguments.model)), arguments.new_tokens)
    for length in lengths:
        await agents.remember(f"{length}", length)
        await agents.evict(f"{length}")
    for number in range(arguments.samples + 1):
        for length in lengths:
            each = await measure(agents, length, number)
            if number:
                rounds[length].append(each)
        if number:
            found |= summaries(rounds)
            results.write(output_of(arguments), found)
    return found


def output_of(arguments: argparse.Namespace) -> str:
    return arguments.output or f"break-even-{model_name(arguments.model)}-{results.backend()}"


async def main(arguments: argparse.Namespace) -> None:
    bytes_per_token = kv_bytes_per_token(model_directory(arguments.model))
    environment = {
        "AGENTMEM_WORKER_MIN_RESTORE_TOKENS": "1",
        "AGENTMEM_WORKER_POOL_BYTES": str((2 * max(arguments.lengths) + 8192) * bytes_per_token),
    }
    async with running(arguments.model, environment=environment) as stack:
        found = await measured(stack, arguments)
    results.conclude(output_of(arguments), found, tables(found))


def parser() -> argparse.ArgumentParser:
    found = options.parser(__doc__)
    found.add_argument("--model", default="demo", help="demo, or NAME=DIRECTORY")
    found.add_argument(
        "--lengths", type=options.at_least(2), nargs="+", default=LENGTHS, help="of what could be restored"
    )
    found.add_argument("--new-tokens", type=options.at_least(1), default=NEW_TOKENS, help="that the next turn appends")
    found.add_argument("--samples", type=options.at_least(1), default=7, help="rounds, after one to warm up")
    found.add_argument("--output", help="name of the file in benchmarks/results")
    return found


if __name__ == "__main__":
    sys.exit(asyncio.run(main(parser().parse_args())))
