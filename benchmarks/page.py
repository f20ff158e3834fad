"""The cost of the page at /ui/ while it is open: decode throughput of 8 agents with it and without it, in turn.

    agentmem bench page [--model NAME=PATH] [--rounds 12] [--tokens 1200] [--agents 8] [--stored 1000]

In every other round three tabs of `page_views` are open while the agents stream chat completions. Ratios are of pairs
of rounds, with an interval by a bootstrap. A round that ended before the page was complete counts for none.
"""

import argparse
import asyncio
import itertools
import sys
from typing import Any

from benchmarks import children, intervals, options, results
from benchmarks.children import Child
from benchmarks.live import LiveStack, running
from benchmarks.models import model_directory, model_name
from benchmarks.peers.servers import end_tokens
from benchmarks.tables import Table, interval, milliseconds, spread
from gateway.cli.bench.completions import Answer, Client

WITHOUT, WITH = "without the page", "with the page"
STORED = "stored {}"
_SERVICES = ("worker", "gateway", "store")
PROMPT = "The colour of the boat is green. Who told you that?"


async def fill(stack: LiveStack, agents: int) -> None:
    await stack.ask(STORED.format(0), 40, prompt=PROMPT)
    for number in range(1, agents):
        await stack.fork(STORED.format(0), STORED.format(number))


def together(answers: list[Answer], tokens: int) -> float:
    """Return tokens a second from the last one's second piece until the first one's end. Raises RuntimeError."""
    if problems := [problem for answer in answers if (problem := answer.problem(tokens))]:
        raise RuntimeError(f"an agent's answer is not what it should be: {problems[0]}")
    begin = max(answer.arrivals[:2][-1] for answer in answers)
    end = min(answer.arrivals[-1] for answer in answers)
    within = [sum(begin < at <= end for at in answer.arrivals) / len(answer.arrivals) for answer in answers]
    if sum(within) < len(answers) / 2:
        raise RuntimeError("the agents hardly generated together; ask for more tokens")
    return sum(within) * tokens / (end - begin)


class Rounds:
    def __init__(self, stack: LiveStack, browser: Child, client: Client, asked: dict[str, Any]) -> None:
        self._stack, self._browser, self._client, self._asked = stack, browser, client, asked
        self._numbers = itertools.count()

    async def measure(self, way: str) -> dict[str, Any]:
        name, asked = f"round {next(self._numbers)}", self._asked
        processes = {service: self._stack.process(service) for service in _SERVICES}
        before = {service: sum(process.cpu_times()[:2]) for service, process in processes.items()}
        if way == WITH:
            url, agent = f"http://{self._stack.addresses['http']}", STORED.format(0)
            await self._browser.ask(do="open", url=url, model=asked["model"], agent=agent, agents=asked["stored"])
        messages = [{"role": "user", "content": PROMPT}]
        answers = await asyncio.gather(
            *(
                self._client.ask(messages, asked["tokens"], agent=f"{name} {number}")
                for number in range(asked["agents"])
            )
        )
        sample = {"tokens_per_second": together(answers, asked["tokens"])}
        if way == WITH:
            sample |= await self._browser.ask(do="close")
        for service, process in processes.items():
            sample[f"{service}_cpu_seconds"] = sum(process.cpu_times()[:2]) - before[service]
        return sample


def figures(samples: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    ratios = [
        mine["tokens_per_second"] / other["tokens_per_second"]
        for mine, other in zip(samples[WITH], samples[WITHOUT], strict=True)
        if not mine["late"]
    ]
    polls = [seconds for sample in samples[WITH] for seconds in sample["overview_seconds"]]

    def summary(way: str, name: str) -> dict[str, Any]:
        return results.summary([sample[name] for sample in samples[way]])

    return {
        "tokens_per_second": {way: summary(way, "tokens_per_second") for way in samples},
        "ratio": results.summary(ratios) if ratios else None,
        "interval": intervals.mean(ratios, [1.0] * len(ratios))._asdict() if ratios else None,
        "cpu_seconds": {
            way: {service: summary(way, f"{service}_cpu_seconds") for service in _SERVICES} for way in samples
        },
        "late": sum(sample["late"] for sample in samples[WITH]),
        "requests": summary(WITH, "requests"),
        "overview_seconds": results.summary(polls) if polls else None,
        "samples": samples,
    }


def tables(figures: dict[str, Any]) -> list[Table]:
    asked, rows = figures["asked"], []
    for way in (WITHOUT, WITH):
        used = figures["cpu_seconds"][way]
        ratio = "1" if way == WITHOUT else interval(figures["interval"], ".4f") if figures["interval"] else ""
        cpu = (f"{used[service]['median']:.2f} s" for service in _SERVICES)
        rows.append((way, spread(figures["tokens_per_second"][way]), ratio, *cpu))
    polls = figures["overview_seconds"]
    pairs = len(figures["ratio"]["samples"]) if figures["ratio"] else 0
    note = f"The ratio is the mean of {pairs} pairs of rounds, with its 95 % interval. "
    note += f"A round with the page has {figures['requests']['median']:.0f} requests"
    note += f"; an overview takes {milliseconds(polls)}." if polls else "."
    if figures["late"]:
        note += f" {figures['late']} rounds, left out of it, had ended before the page was complete."
    title = f"Decode throughput of {asked['agents']} agents with the page open, model {asked['model']}"
    columns = ("round", "tokens/s", "ratio", *(f"{service}'s CPU" for service in _SERVICES))
    return [Table(title, columns, rows, note)]


async def main(arguments: argparse.Namespace) -> int:
    asked = {name: getattr(arguments, name) for name in ("agents", "tokens", "stored")}
    asked["model"] = model_name(arguments.model)
    output = arguments.output or f"page-{asked['model']}-{results.backend()}"
    ends = end_tokens(model_directory(arguments.model))
    async with running(arguments.model, metrics=True) as stack:
        found = await rounds(stack, asked, ends, arguments.rounds, output)
    return results.conclude(output, found, tables(found))


async def rounds(stack: LiveStack, asked: dict[str, Any], ends: list[int], pairs: int, output: str) -> dict[str, Any]:
    samples: dict[str, list[dict[str, Any]]] = {WITHOUT: [], WITH: []}
    await fill(stack, asked["stored"])
    found: dict[str, Any] = {}
    client = Client(f"http://{stack.addresses['http']}", asked["model"], ends)
    async with children.started("benchmarks.page_views", computes=False) as browser:
        one = Rounds(stack, browser, client, asked)
        for way in samples:
            await one.measure(way)
        for number in range(pairs):
            for way in (WITHOUT, WITH) if number % 2 == 0 else (WITH, WITHOUT):
                samples[way].append(await one.measure(way))
            found = {"asked": asked, **figures(samples)}
            results.write(output, found)
    await client.close()
    return found


if __name__ == "__main__":
    parser = options.parser(__doc__, "page-MODEL-BACKEND")
    parser.add_argument("--model", default="demo", help="demo, or NAME=PATH of a model")
    parser.add_argument("--agents", type=int, default=8)
    parser.add_argument("--stored", type=options.at_least(2), default=1000, help="agents that there are besides")
    parser.add_argument("--tokens", type=int, default=1200, help="that each agent generates in a round")
    parser.add_argument("--rounds", type=options.at_least(1), default=12, help="pairs of rounds, one with the page")
    sys.exit(asyncio.run(main(parser.parse_args())))
