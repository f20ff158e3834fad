"""More agents than memory holds: ten of 8K take 100 turns in a pool that fits three, against keeping nothing.

    agentmem bench capacity [--agents 10] [--holds 3] [--length 8192] [--rounds 10] [--baseline-turns 100]
    agentmem bench capacity --model llama-3.1-8b=DIR

Through the gateway, by gRPC. The agents are computed first, each from tokens of its own, so that they share nothing;
that is not counted. Then they speak one after the other, round after round, each with `--new` tokens and so many more
that are generated, and they end at `--length` tokens. The pool holds `--holds` agents of that length
(AGENTMEM_WORKER_POOL_BYTES): round robin is the order in which the last use always evicts who comes next.

Against that, the very same requests, token for token, without an agent's name and with CACHE_POLICY_RECOMPUTE: the
whole prompt is computed each time, and nothing is kept. They come after each round, on the same stack, and give their
blocks of the pool back, where the next round's first agent finds room. With fewer of them than turns
(`--baseline-turns`; default 100 on a GPU and 10 on a CPU), the time of all is said to be extrapolated. Files of KV are
in the page cache where the machine has the memory for it.

A turn that reuses anything but its agent's whole ledger, or anything at all without a name, ends the benchmark.
"""

import argparse
import asyncio
import sys
import time
from typing import Any

from rich.console import Console

from agentmem.kv.blockfile import BLOCK_TOKENS
from benchmarks import options, results
from benchmarks.conversations import NOBODY, Conversation, ask
from benchmarks.live import LiveStack, running_over, scratch
from benchmarks.models import model_name
from benchmarks.pictures import PERCENTILES
from benchmarks.pictures import of_capacity as plots
from benchmarks.scraping import counted, summed
from benchmarks.tables import Claim, Table, duration
from benchmarks.turns import Turn, check

__all__ = ["claims", "main", "plots", "tables"]

KEPT, NOTHING = "agentmem", "nothing kept"


def pool_bytes(holds: int, length: int, bytes_per_token: int) -> int:
    """A pool of whole blocks for so many agents of one length."""
    return holds * -(-length // BLOCK_TOKENS) * BLOCK_TOKENS * bytes_per_token


def first_length(length: int, rounds: int, grows: int) -> int:
    """An agent's first prompt, if it is to have `length` tokens at the end: each round, and one to warm up, grows it.

    Raises SystemExit where nothing is left for it.
    """
    if (first := length - (rounds + 1) * grows) < 1:
        raise SystemExit(f"{rounds} rounds of {grows} tokens do not fit into {length}; take fewer, or a --length above")
    return first


def portions(total: int, rounds: int) -> list[int]:
    """`total` baseline turns as evenly as can be over the rounds."""
    return [(number + 1) * total // rounds - number * total // rounds for number in range(rounds)]


def chosen(count: int, agents: int, number: int) -> list[int]:
    """Whose turns of round `number` are asked without a name: so many, of others in each round."""
    return sorted((number * count + each) % agents for each in range(count))


def sample(turn: Turn) -> dict[str, Any]:
    """What is kept of a turn."""
    return {
        **{"prompt": turn.prompt, "first": turn.first, "seconds": turn.seconds, "cached": turn.cached},
        **{"load": turn.load, "load_bytes": turn.load_bytes, "prefill": turn.prefill, "queue": turn.queue},
    }


class Capacity:
    """The measurement on one stack. `new` and `generated` are tokens of each turn."""

    def __init__(self, stack: LiveStack, agents: int, new: int, generated: int) -> None:
        self._stack = stack
        self._new, self._generated = new, generated
        self._agents = [Conversation(f"agent {number}") for number in range(agents)]

    async def create(self, length: int) -> list[float]:
        """Compute all agents; seconds to each one's first token. They are on disk afterwards."""
        found = []
        for agent in self._agents:
            prompt = agent.prompt(length - self._generated)
            turn = await ask(self._stack, agent.agent, prompt, self._generated)
            check(turn, len(prompt), self._generated, 0)
            agent.heard(prompt, turn)
            found.append(turn.first)
        for agent in self._agents:
            await self._stack.on_disk(agent.agent)
        return found

    async def round(self, number: int, baseline: int) -> dict[str, Any]:
        """A turn of each, one right after the other; then so many of the same requests without a name."""
        prompts, turns = [], []
        before = await self._stack.worker_metrics()
        began = time.monotonic()
        for agent in self._agents:
            prompt = agent.prompt(self._new)
            turn = await ask(self._stack, agent.agent, prompt, self._generated)
            check(turn, len(prompt), self._generated, len(agent.token_ids), ("hot", "warm"))
            agent.heard(prompt, turn)
            prompts.append(prompt)
            turns.append(turn)
        wall = time.monotonic() - began
        for agent in self._agents:
            await self._stack.on_disk(agent.agent)
        metrics = counted(before, await self._stack.worker_metrics())
        nothing = []
        for chosen_agent in chosen(baseline, len(prompts), number):
            prompt = prompts[chosen_agent]
            turn = await ask(self._stack, NOBODY, prompt, self._generated)
            check(turn, len(prompt), self._generated, 0)
            nothing.append(turn)
        return {
            "wall": wall,
            "metrics": metrics,
            KEPT: [sample(turn) for turn in turns],
            NOTHING: [sample(turn) for turn in nothing],
        }


def figures(asked: dict[str, Any], created: list[float], warm_up: Any, rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """What is written: percentiles, sums and all samples."""
    ways = {way: [turn for each in rounds for turn in each[way]] for way in (KEPT, NOTHING)}
    turns = len(ways[KEPT])
    summaries = {
        way: {
            "turns": len(samples),
            "first_token": {
                **results.summary([turn["first"] for turn in samples]),
                **{f"p{each}": results.percentile([turn["first"] for turn in samples], each) for each in PERCENTILES},
            },
            "load": results.summary([turn["load"] for turn in samples]),
            "prefill": results.summary([turn["prefill"] for turn in samples]),
            "tokens": sum(turn["prompt"] for turn in samples),
            "cached": summed([turn["cached"] for turn in samples]),
            "load_bytes": sum(turn["load_bytes"] for turn in samples),
            "seconds": sum(turn["seconds"] for turn in samples),
        }
        for way, samples in ways.items()
        if samples
    }
    found: dict[str, Any] = {
        "asked": asked,
        "created": results.summary(created),
        "warm_up": warm_up,
        "ways": summaries,
        "metrics": summed([each["metrics"] for each in rounds]),
        "wall": {KEPT: sum(each["wall"] for each in rounds)},
        "rounds": rounds,
    }
    if baseline := summaries.get(NOTHING):
        found["wall"][NOTHING] = baseline["seconds"] / baseline["turns"] * turns
        found["extrapolated"] = baseline["turns"] < turns
        found["times_as_fast"] = found["wall"][NOTHING] / found["wall"][KEPT]
    return found


def tables(figures: dict[str, Any]) -> list[Table]:
    """Times of the turns and of all together, and where the KV was."""
    asked, metrics = figures["asked"], figures["metrics"]
    turns = figures["ways"][KEPT]["turns"]
    rows = []
    for way, row in figures["ways"].items():
        first = row["first_token"]
        wall = f"{figures['wall'][way]:.1f} s"
        rows.append(
            (
                f"{way}{', extrapolated' if way == NOTHING and figures['extrapolated'] else ''}",
                str(row["turns"]),
                *(duration(first[f"p{each}"]) if row["turns"] >= least else "–" for each, least in PERCENTILES.items()),
                *(duration(row[name]["median"]) for name in ("load", "prefill")),
                f"{row['load_bytes'] / row['turns'] / 1e6:.1f} MB",
                wall,
            )
        )
    times = f"Times as fast: {figures['times_as_fast']:.1f}. " if "times_as_fast" in figures else ""
    note = times + (
        f"{asked['agents']} agents that end at {asked['length']} tokens, a pool of {asked['pool_blocks']} blocks "
        f"({asked['pool_bytes'] / 1e6:.0f} MB) that fits {asked['holds']}; "
        f"each turn has {asked['new']} new tokens and generates {asked['generated']}."
    )
    if figures.get("extrapolated"):
        measured = figures["ways"][NOTHING]["turns"]
        note += f" With nothing kept, {measured} turns were measured; the time of {turns} is their mean times {turns}."
    queries = metrics["queries"]
    hits = [
        (f"tokens of prompts that were {tier}", f"{count / queries:.1%}") for tier, count in metrics["hits"].items()
    ]
    turn_tiers = metrics["lookups"]["tier"]
    return [
        Table(
            f"{turns} turns, round robin, in a pool that fits {asked['holds']} of {asked['agents']}: first token",
            ("", "turns", "p50", "p90", "p99", "of it loading", "prefill", "read a turn", f"{turns} turns"),
            rows,
            note,
        ),
        Table(
            f"What the worker's metrics say of the {turns} turns",
            ("", ""),
            [
                *hits,
                *(
                    (f"turns whose slowest tier was {tier or 'none'}", f"{count:.0f}")
                    for tier, count in turn_tiers.items()
                ),
                ("KV read", f"{metrics['bytes_read'] / 1e6:.1f} MB"),
                ("KV written", f"{metrics['bytes_written'] / 1e6:.1f} MB"),
                ("agents evicted from the pool", f"{metrics['evictions']:.0f}"),
            ],
        ),
    ]


def claims(figures: dict[str, Any]) -> list[Claim]:  # noqa: ARG001
    """None: no figure is to be reached here."""
    return []


async def main(arguments: argparse.Namespace) -> None:
    """Ask the model what a token takes, then measure in a pool of the size that follows from it."""
    first_length(arguments.length, arguments.rounds, arguments.new + arguments.generated)
    environment = {"AGENTMEM_WORKER_CONTEXT_LENGTH": str(arguments.length)}
    console = Console()
    with scratch() as root:
        console.print("asking the model for its bytes per token …")
        async with running_over(root, arguments.model, environment) as stack:
            per_token = (await stack.describe_model()).kv_bytes_per_token
        environment["AGENTMEM_WORKER_POOL_BYTES"] = str(pool_bytes(arguments.holds, arguments.length, per_token))
        async with running_over(root, arguments.model, environment, metrics=True) as stack:
            found = await measure(stack, arguments, console)
    output = arguments.output or f"capacity-{model_name(arguments.model)}-{results.backend()}"
    results.conclude(output, found, tables(found))


async def measure(stack: LiveStack, arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """All agents, a round to warm up, and the rounds; written after each.

    Raises RuntimeError where the stack's pool is not one for `holds` agents.
    """
    model = await stack.describe_model()
    size = pool_bytes(arguments.holds, arguments.length, model.kv_bytes_per_token)
    blocks = int((await stack.worker_metrics()).total("agentmem_pool_blocks") or 0)
    if blocks * BLOCK_TOKENS * model.kv_bytes_per_token != size:
        raise RuntimeError(f"a pool of {size} bytes was asked for, and there are {blocks} blocks")
    first = first_length(arguments.length, arguments.rounds, arguments.new + arguments.generated)
    names = ("agents", "holds", "length", "rounds", "new", "generated")
    asked = {
        **{name: getattr(arguments, name) for name in names},
        **{"model": model.model_id, "first_length": first, "pool_bytes": size, "pool_blocks": blocks},
        "kv_bytes_per_token": model.kv_bytes_per_token,
    }
    wanted = arguments.baseline_turns
    if wanted is None:
        wanted = 100 if results.backend() == "gpu" else 10
    baseline = min(wanted, arguments.agents * arguments.rounds)
    output = arguments.output or f"capacity-{model_name(arguments.model)}-{results.backend()}"
    measured = Capacity(stack, arguments.agents, arguments.new, arguments.generated)
    console.print(f"computing {arguments.agents} agents of {first} tokens …")
    created = await measured.create(first)
    warm_up = await measured.round(-1, min(1, baseline))
    rounds: list[dict[str, Any]] = []
    for number, portion in enumerate(portions(baseline, arguments.rounds)):
        rounds.append(await measured.round(number, portion))
        found = figures(asked, created, warm_up, rounds)
        path = results.write(output, found)
        console.print(f"round {number + 1} of {arguments.rounds}: {rounds[-1]['wall']:.1f} s, in {path}")
    return found


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = options.parser(__doc__)
    found.add_argument("--model", default="demo", help="demo, or NAME=DIRECTORY of a model")
    found.add_argument("--agents", type=options.at_least(1), default=10)
    found.add_argument("--holds", type=options.at_least(1), default=3, help="agents that the pool holds")
    found.add_argument("--length", type=int, default=8192, help="tokens of each agent at the end")
    found.add_argument("--rounds", type=options.at_least(1), default=10, help="turns of each agent")
    found.add_argument("--new", type=options.at_least(1), default=32, help="new tokens of each turn")
    found.add_argument("--generated", type=options.at_least(1), default=4, help="tokens that each turn generates")
    found.add_argument(
        "--baseline-turns",
        type=options.at_least(0),
        help="turns with nothing kept (default: 100 on a GPU, 10 on a CPU)",
    )
    found.add_argument("--output", help="name of the file under benchmarks/results (default: capacity-MODEL-BACKEND)")
    return found


if __name__ == "__main__":
    sys.exit(asyncio.run(main(parser().parse_args())))
