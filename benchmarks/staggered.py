"""Staggered arrivals: agent A comes cold with a long prompt, B a little later, cold or warm; each against itself alone.

    agentmem bench staggered [--tokens 4096] [--offset 2.0] [--samples 5]
    agentmem bench staggered --model NAME=PATH --tokens-a 32768 --context-length 40960

All through the gateway's gRPC door, by one client's clock. A's prompt is new each time. A cold B's is too; a warm B has
its KV on disk (worker and store were killed after it was written; between samples B is evicted from memory) and makes a
real next turn of 50 new tokens. Each sample measures A alone, a cold and a warm B alone, and then the pairs, so that
every figure is a ratio within a sample:

- "offset": B comes `--offset` seconds after A, cold and warm;
- "prefill": a warm B comes while A's prompt is computed, at a moment that moves through A's prefill from sample to
  sample, because what B waits for depends on it. It counts only if A's first token came after B had been sent.

A "gap" is the longest time between two tokens of A's stream. Every turn is checked: the tokens of its prompt, those
that were reused and from which tier, and those that it generated.
"""

import argparse
import asyncio
import sys
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks import options, results
from benchmarks.conversations import ask
from benchmarks.live import LiveStack, running
from benchmarks.models import model_name
from benchmarks.pictures import of_staggered as plots
from benchmarks.prompts import NEW_TOKENS, next_turn, token_ids
from benchmarks.tables import Claim, Table, conclude, milliseconds, spread
from benchmarks.turns import Turn, check

__all__ = ["claims", "main", "plots", "tables"]

BASE = "B as it was"
_ATTEMPTS = 4
PAIRS = ("offset, cold B", "offset, warm B", "prefill, warm B")


@dataclass(frozen=True)
class Sizes:
    """Tokens of A's and B's prompts, what each generates, and B's delay in seconds."""

    tokens_a: int
    tokens_b: int
    generate_a: int
    generate_b: int
    offset: float


class Arrivals:
    """A and B on one stack. `base` is what a warm B remembers."""

    def __init__(self, stack: LiveStack, sizes: Sizes) -> None:
        self._stack = stack
        self._sizes = sizes
        self._base = token_ids(sizes.tokens_b, BASE)

    async def prepare(self) -> None:
        """B's KV goes to disk, and out of memory."""
        await self._stack.prefill(BASE, self._base)
        await self._stack.evict(BASE)

    async def restart(self) -> None:
        """Worker and store are killed; what only the first turns of a worker do is done."""
        await self._stack.kill("worker", "store")
        warm, cold = await self._b("warm-up", warm=True), await self._b("warm-up", warm=False)
        a = await self._a("warm-up")
        await self._both("warm-up together", warm=True, delay=min(0.2 * a.first, warm.first + cold.first))

    async def sample(self, number: int, moment: float) -> dict[str, Any]:
        """Each alone, and the pairs; `moment` is where in A's prefill the last B comes, 0 to 1."""
        name = f"sample {number}"
        alone = {
            "A": facts(await self._a(f"{name} alone")),
            "cold B": facts(await self._b(f"{name} alone", warm=False)),
            "warm B": facts(await self._b(f"{name} alone", warm=True)),
        }
        pairs = {
            pair: await self._both(f"{name} {pair}", warm=warm, delay=self._sizes.offset)
            for pair, warm in zip(PAIRS, (False, True), strict=False)
        }
        pairs[PAIRS[2]] = await self._within_prefill(name, moment * alone["A"]["first"])
        return {"alone": alone, "pairs": pairs}

    async def _within_prefill(self, name: str, delay: float) -> dict[str, Any]:
        """A warm B in A's prefill; earlier if A was done with that already, as on a machine that is busy at times."""
        for attempt in range(_ATTEMPTS):
            pair = await self._both(f"{name} {PAIRS[2]}, {attempt}", warm=True, delay=delay / 2**attempt)
            if pair["while_prefilling"]:
                return pair
        raise RuntimeError("A had its first token before B came; give A a longer prompt (--tokens-a)")

    async def _both(self, name: str, *, warm: bool, delay: float) -> dict[str, Any]:
        first = asyncio.create_task(self._a(name))
        await asyncio.sleep(delay)
        began = first.done()
        second = asyncio.create_task(self._b(name, warm=warm))
        a, b = await first, await second
        sent = b.arrivals[0] - b.first
        return {
            "A": facts(a),
            "B": facts(b),
            "delay": delay,
            "while_prefilling": not began and sent < a.arrivals[0],
            "before_a": b.arrivals[0] < a.arrivals[0],
        }

    async def _a(self, name: str) -> Turn:
        agent, wanted = f"A, {name}", self._sizes.generate_a
        prompt = token_ids(self._sizes.tokens_a, agent)
        turn = await ask(self._stack, agent, prompt, wanted)
        await self._stack.evict(agent)
        return check(turn, len(prompt), wanted, 0)

    async def _b(self, name: str, *, warm: bool) -> Turn:
        agent, wanted = f"B, {name}, {'warm' if warm else 'cold'}", self._sizes.generate_b
        prompt = next_turn(self._base, agent) if warm else token_ids(self._sizes.tokens_b, agent)
        if warm:
            await self._stack.fork(BASE, agent)
        turn = await ask(self._stack, agent, prompt, wanted)
        await self._stack.evict(agent)
        return check(turn, len(prompt), wanted, len(self._base) if warm else 0, ("warm",))


def facts(turn: Turn) -> dict[str, Any]:
    """What is kept of a turn: seconds, and tokens by tier."""
    gaps = [later - earlier for earlier, later in zip(turn.arrivals, turn.arrivals[1:], strict=False)]
    return {
        "first": turn.first,
        "total": turn.seconds,
        "gap": max(gaps, default=0.0),
        "queue": turn.queue,
        "load": turn.load,
        "prefill": turn.prefill,
        "cached": turn.cached,
    }


def moments(samples: int) -> list[float]:
    """Where in A's prefill B comes: spread evenly over its first nine tenths."""
    return [0.9 * (number + 0.5) / samples for number in range(samples)]


def figures(sizes: Sizes, samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians with spread of times, and of ratios within samples."""
    alone = {
        name: {what: results.summary([s["alone"][name][what] for s in samples]) for what in ("first", "total", "gap")}
        for name in samples[0]["alone"]
    }
    return {
        "sizes": asdict(sizes),
        "new_tokens": NEW_TOKENS,
        "alone": alone,
        "pairs": {pair: _compared(pair, samples) for pair in PAIRS},
        "samples": samples,
    }


def _compared(pair: str, samples: list[dict[str, Any]]) -> dict[str, Any]:
    b_alone = pair.rpartition(", ")[2]
    found: dict[str, Any] = {}
    for who, alone in (("A", "A"), ("B", b_alone)):
        for what in ("first", "total"):
            together = [s["pairs"][pair][who][what] for s in samples]
            ratios = [t / s["alone"][alone][what] for t, s in zip(together, samples, strict=True)]
            found[f"{who} {what}"] = results.summary(together)
            found[f"{who} {what} ratio"] = results.summary(ratios)
    found["gap"] = results.summary([s["pairs"][pair]["A"]["gap"] for s in samples])
    found["while_prefilling"] = sum(s["pairs"][pair]["while_prefilling"] for s in samples)
    return found


def tables(found: dict[str, Any]) -> list[Table]:
    """Each alone, and the pairs."""
    sizes = found["sizes"]
    alone = [
        (name, milliseconds(each["first"]), milliseconds(each["total"]), milliseconds(each["gap"]))
        for name, each in found["alone"].items()
    ]
    pairs = [
        (
            pair,
            milliseconds(each["B first"]),
            spread(each["B first ratio"], 2, "x"),
            spread(each["B total ratio"], 2, "x"),
            milliseconds(each["A total"]),
            spread(each["A total ratio"], 2, "x"),
            spread(each["A first ratio"], 2, "x"),
            milliseconds(each["gap"]),
        )
        for pair, each in found["pairs"].items()
    ]
    return [
        Table("Staggered arrivals: each alone", ("who", "first token", "total", "longest gap"), alone),
        Table(
            "Staggered arrivals: B after A",
            (
                "B comes",
                "B's first token",
                "B's first, to alone",
                "B's total, to alone",
                "A's total",
                "A's total, to alone",
                "A's first, to alone",
                "A's gap",
            ),
            pairs,
            f"A: {sizes['tokens_a']} tokens, cold, and {sizes['generate_a']} generated; B: {sizes['tokens_b']} tokens, "
            f"and {sizes['generate_b']} generated, after {sizes['offset']:g} s or at a moment of A's prefill; a warm B "
            f"has {found['new_tokens']} new tokens more. Ratios are to each alone, within a sample; the gap is the "
            "longest in A's stream. Medians (least–most).",
        ),
    ]


def claims(found: dict[str, Any]) -> list[Claim]:
    """A warm B hardly waits for A's prefill, nor A for B; and a cold one not as if both were one batch."""
    pair = found["pairs"][PAIRS[2]]
    cold = found["pairs"][PAIRS[0]]
    return [
        Claim("warm B's first token while A prefills, to B alone", pair["B first ratio"]["median"], 1.5, at_most=True),
        Claim("A's total with a warm B in its prefill, to A alone", pair["A total ratio"]["median"], 1.1, at_most=True),
        Claim("cold B's first token after A, to B alone", cold["B first ratio"]["median"], 2.0, at_most=True),
    ]


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = options.parser(__doc__)
    found.add_argument("--model", default="demo", help="demo, or NAME=DIRECTORY of a model")
    found.add_argument("--tokens", type=int, default=4096, help="of each prompt; a warm B remembers so many")
    found.add_argument("--tokens-a", type=int, help="of A's prompt, where it differs")
    found.add_argument("--generate-a", type=int, default=128, help="tokens that A generates")
    found.add_argument("--generate-b", type=int, default=32, help="tokens that B generates")
    found.add_argument("--offset", type=float, default=2.0, help="seconds from A to B")
    found.add_argument("--context-length", type=int, help="the worker's, where it is not what the model says")
    found.add_argument("--samples", type=options.at_least(1), default=5)
    found.add_argument("--output", default="", help="name under benchmarks/results (staggered-MODEL-BACKEND)")
    return found


async def main(arguments: argparse.Namespace) -> int:
    """Measure, writing after each sample, and print; the exit status."""
    sizes = Sizes(
        arguments.tokens_a or arguments.tokens,
        arguments.tokens,
        arguments.generate_a,
        arguments.generate_b,
        arguments.offset,
    )
    output = arguments.output or f"staggered-{model_name(arguments.model)}-{results.backend()}"
    length = {"AGENTMEM_WORKER_CONTEXT_LENGTH": str(arguments.context_length)} if arguments.context_length else {}
    samples: list[dict[str, Any]] = []
    async with running(arguments.model, environment=length) as stack:
        arrivals = Arrivals(stack, sizes)
        await arrivals.prepare()
        await arrivals.restart()
        for number, moment in enumerate(moments(arguments.samples)):
            samples.append(await arrivals.sample(number, moment))
            found = figures(sizes, samples)
            path = results.write(output, found)
    return conclude(tables(found), path, claims(found))


if __name__ == "__main__":
    sys.exit(asyncio.run(main(parser().parse_args())))
