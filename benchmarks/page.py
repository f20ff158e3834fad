"""What the page at /ui/ costs while it is open: decode throughput of 8 agents with it and without it, in turn.

    agentmem bench page [--rounds 12] [--tokens 1200] [--agents 8] [--stored 1000]
    agentmem bench page --model NAME=PATH

One stack with 1,000 agents. In every other round three tabs are opened as the agents begin, and stay open until they
have ended: the overview, all agents, and the memory of one. Their requests are those that a real Chromium was seen to
make, sent by a process of the lowest priority (`benchmarks.page_views`): a browser's own work is not the server's, and
would take cores from it. The agents stream through the gateway's HTTP door, which the page's requests use, too.

Each figure is the ratio of two rounds that follow each other, with the page first in every other pair. The interval
is of a bootstrap over these pairs. A round that had ended before the page was complete counts for none.
"""

import argparse
import asyncio
import json
import os
import sys
from typing import Any

from benchmarks import children, intervals, options, results
from benchmarks.children import Child
from benchmarks.live import LiveStack, running
from benchmarks.models import model_directory, model_name
from benchmarks.tables import Table, interval, milliseconds, spread

__all__ = ["main", "tables"]

WITHOUT, WITH = "without the page", "with the page"
STORED = "stored {}"
_SERVICES = ("worker", "gateway", "store")
PROMPT = "The colour of the boat is green. Who told you that?"


def end_tokens(model: str) -> list[str]:
    """The ids that end a turn, which are never to be sampled, from the model's own files."""
    directory = model_directory(model)
    for name in ("generation_config.json", "config.json"):
        path = directory / name
        found = json.loads(path.read_text()).get("eos_token_id") if path.exists() else None
        if found is not None:
            return [str(token) for token in (found if isinstance(found, list) else [found])]
    return []


async def fill(stack: LiveStack, agents: int) -> str:
    """Have so many agents that look alike; the name of one."""
    first = STORED.format(0)
    await stack.ask(first, 40, prompt=PROMPT)
    for number in range(1, agents):
        await stack.fork(first, STORED.format(number))
    return first


async def measure(
    stack: LiveStack, clients: Child, browser: Child, way: str, name: str, asked: dict[str, Any]
) -> dict[str, Any]:
    """One round."""
    processes = {service: stack.process(service) for service in _SERVICES}
    before = {service: sum(process.cpu_times()[:2]) for service, process in processes.items()}
    if way == WITH:
        url = f"http://{stack.addresses['http']}"
        await browser.ask(do="open", url=url, model=stack.model, agent=STORED.format(0), agents=asked["stored"])
    agents = [f"{name} {number}" for number in range(asked["agents"])]
    told = {key: asked[key] for key in ("model", "tokens", "prompt", "never")}
    target = stack.addresses["http"]
    sample: dict[str, Any] = await clients.ask(do="round", agents=agents, door="http", target=target, **told)
    if way == WITH:
        sample |= await browser.ask(do="close")
    for service, process in processes.items():
        sample[f"{service}_cpu_seconds"] = sum(process.cpu_times()[:2]) - before[service]
    return sample


def figures(samples: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Throughput both ways, the ratio of pairs with its interval, None without one that counts; what the page asked."""
    speeds = {way: [sample["tokens_per_second"] for sample in samples[way]] for way in samples}
    ratios = [
        mine["tokens_per_second"] / other["tokens_per_second"]
        for mine, other in zip(samples[WITH], samples[WITHOUT], strict=True)
        if not mine["late"]
    ]
    polls = [seconds for sample in samples[WITH] for seconds in sample["overview_seconds"]]
    return {
        "tokens_per_second": {way: results.summary(speeds[way]) for way in samples},
        "ratio": results.summary(ratios) if ratios else None,
        "interval": intervals.mean(ratios, [1.0] * len(ratios))._asdict() if ratios else None,
        "cpu_seconds": {
            way: {
                service: results.summary([sample[f"{service}_cpu_seconds"] for sample in samples[way]])
                for service in _SERVICES
            }
            for way in samples
        },
        "late": sum(sample["late"] for sample in samples[WITH]),
        "requests": results.summary([sample["requests"] for sample in samples[WITH]]),
        "overview_seconds": results.summary(polls) if polls else None,
        "samples": samples,
    }


def tables(figures: dict[str, Any]) -> list[Table]:
    """Throughput and processor time both ways."""
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
        note += (
            f" {figures['late']} rounds, left out of it, had ended before the page was complete: ask for more tokens."
        )
    title = f"Decode throughput of {asked['agents']} agents with the page open, model {asked['model']}"
    columns = ("round", "tokens/s", "ratio", *(f"{service}'s CPU" for service in _SERVICES))
    return [Table(title, columns, rows, note)]


async def main(arguments: argparse.Namespace) -> int:
    """Measure, print; written after each pair. Return the exit status."""
    asked = {
        "model": model_name(arguments.model),
        "agents": arguments.agents,
        "tokens": arguments.tokens,
        "stored": arguments.stored,
        "prompt": PROMPT,
        "never": end_tokens(arguments.model),
    }
    output = arguments.output or f"page-{asked['model']}-{results.backend()}"
    async with running(arguments.model, metrics=True) as stack:
        found = await rounds(stack, asked, arguments.rounds, output)
    return results.conclude(output, found, tables(found))


async def rounds(stack: LiveStack, asked: dict[str, Any], pairs: int, output: str) -> dict[str, Any]:
    """All rounds on a stack; what was written."""
    samples: dict[str, list[dict[str, Any]]] = {WITHOUT: [], WITH: []}
    await fill(stack, asked["stored"])
    found: dict[str, Any] = {}
    async with (
        children.started("benchmarks.decoding_clients", computes=False) as clients,
        children.started("benchmarks.page_views", computes=False) as browser,
    ):
        for way in samples:
            await measure(stack, clients, browser, way, f"warm-up {way}", asked)
        for number in range(pairs):
            load = os.getloadavg()[0]
            for way in (WITHOUT, WITH) if number % 2 == 0 else (WITH, WITHOUT):
                sample = await measure(stack, clients, browser, way, f"round {number} {way}", asked)
                samples[way].append(sample | {"load_average": load})
            found = {"asked": asked, **figures(samples)}
            results.write(output, found)
    return found


if __name__ == "__main__":
    parser = options.parser(__doc__)
    parser.add_argument("--model", default="demo", help="demo, or NAME=PATH of a model")
    parser.add_argument("--agents", type=int, default=8)
    parser.add_argument("--stored", type=options.at_least(2), default=1000, help="agents that there are besides")
    parser.add_argument("--tokens", type=int, default=1200, help="that each agent generates in a round")
    parser.add_argument("--rounds", type=options.at_least(1), default=12, help="pairs of rounds, one with the page")
    parser.add_argument("--output", help="name of the file under benchmarks/results (default: page-MODEL-BACKEND)")
    sys.exit(asyncio.run(main(parser.parse_args())))
