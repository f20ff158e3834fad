"""What the gateway costs: decode throughput of 8 agents at the worker's socket, and through the gateway's two doors.

    agentmem bench gateway [--rounds 7] [--tokens 400] [--apart]
    agentmem bench gateway --model NAME=PATH --tokens 400

One stack and one process of clients; the ways take turns, round by round, and each figure is a ratio within a round.
The requests are equal but for the door: the same prompt, the same number of tokens, the same bias against the end of
turn. `--apart` gives the worker half of the cores, and gateway and clients the others, in all rounds: what is left is
what the gateway takes from the engine by more than its processor time. Processor time is counted for each process, so
that the figures tell of the cost also on a machine that is busy with other things.

`python -m benchmarks.random_models llama-3.1-8b PATH` writes a model of real geometry.
"""

import argparse
import asyncio
import json
import os
import sys
from typing import Any

import psutil

from benchmarks import children, options, results
from benchmarks.children import Child
from benchmarks.live import LiveStack, running
from benchmarks.models import model_directory, model_name
from benchmarks.tables import Table, spread

WAYS = ("worker", "grpc", "http")
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


def keep_apart(stack: LiveStack, clients: Child) -> None:
    """Worker and store on the first half of the cores, gateway and clients on the rest."""
    cores = sorted(os.sched_getaffinity(0))
    half = max(1, len(cores) // 2)
    for service, mine in (("worker", cores[:half]), ("store", cores[:half]), ("gateway", cores[half:])):
        _pin(stack.process(service).pid, mine)
    _pin(clients.pid, cores[half:])


def _pin(pid: int, cores: list[int]) -> None:
    for thread in psutil.Process(pid).threads():
        os.sched_setaffinity(thread.id, cores)


async def measure(stack: LiveStack, clients: Child, way: str, name: str, asked: dict[str, Any]) -> dict[str, float]:
    """One round through one way."""
    target = {"worker": f"unix:{stack.root}/run/worker.sock", "grpc": stack.addresses["grpc"]}.get(
        way, stack.addresses["http"]
    )
    services = {service: stack.process(service) for service in ("worker", "gateway")}
    before = {service: sum(process.cpu_times()[:2]) for service, process in services.items()}
    agents = [f"{name} {number}" for number in range(asked["agents"])]
    namespace = "default" if way == "worker" else ""
    door = "http" if way == "http" else "grpc"
    told = {**asked, "agents": agents, "door": door, "target": target, "namespace": namespace}
    sample: dict[str, float] = await clients.ask(do="round", **told)
    for service, process in services.items():
        sample[f"{service}_cpu_seconds"] = sum(process.cpu_times()[:2]) - before[service]
    return sample


def figures(samples: dict[str, list[dict[str, float]]], asked: dict[str, Any]) -> dict[str, Any]:
    """Throughput of each way, the doors' ratios within each round, and the gateway's processor time a token."""
    speeds = {way: [sample["tokens_per_second"] for sample in samples[way]] for way in WAYS}
    total = asked["agents"] * asked["tokens"]
    return {
        "tokens_per_second": {way: results.summary(speeds[way]) for way in WAYS},
        "ratio_to_worker": {
            way: results.summary([mine / direct for mine, direct in zip(speeds[way], speeds["worker"], strict=True)])
            for way in WAYS[1:]
        },
        "gateway_cpu_microseconds_per_token": {
            way: results.summary([sample["gateway_cpu_seconds"] * 1e6 / total for sample in samples[way]])
            for way in WAYS[1:]
        },
        "worker_cpu_microseconds_per_token": {
            way: results.summary([sample["worker_cpu_seconds"] * 1e6 / total for sample in samples[way]])
            for way in WAYS
        },
        "samples": samples,
    }


def tables(figures: dict[str, Any]) -> list[Table]:
    """Throughput by way, and processor time a token."""
    asked, rows = figures["asked"], []
    for way in WAYS:
        ratio = figures["ratio_to_worker"].get(way)
        cost = figures["gateway_cpu_microseconds_per_token"].get(way)
        rows.append(
            (
                way,
                spread(figures["tokens_per_second"][way]),
                spread(ratio, 3) if ratio else "1",
                f"{cost['median']:.0f} µs" if cost else "",
                f"{figures['worker_cpu_microseconds_per_token'][way]['median']:.0f} µs",
            )
        )
    title = f"Decode throughput of {asked['agents']} agents together, model {asked['model']}"
    columns = ("way", "tokens/s", "of the worker's own", "gateway CPU a token", "worker CPU a token")
    return [Table(title, columns, rows)]


async def main(arguments: argparse.Namespace) -> None:
    """Measure, print; written after each round."""
    asked = {
        "model": model_name(arguments.model),
        "agents": arguments.agents,
        "tokens": arguments.tokens,
        "prompt": PROMPT,
        "never": end_tokens(arguments.model),
    }
    output = arguments.output or f"gateway-{asked['model']}-{results.backend()}"
    samples: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    async with (
        running(arguments.model) as stack,
        children.started("benchmarks.decoding_clients", computes=False) as clients,
    ):
        described = await stack.describe_model()
        if arguments.apart:
            keep_apart(stack, clients)
        for way in WAYS:
            await measure(stack, clients, way, f"warm-up by {way}", asked | {"tokens": max(32, arguments.tokens // 4)})
        for number in range(arguments.rounds):
            first = number % len(WAYS)
            load = os.getloadavg()[0]
            for way in (*WAYS[first:], *WAYS[:first]):
                sample = await measure(stack, clients, way, f"round {number} by {way}", asked)
                samples[way].append(sample | {"load_average": load})
            found = {
                "asked": asked,
                "cores": "apart" if arguments.apart else "shared",
                "architecture": described.architecture,
                **figures(samples, asked),
            }
            results.write(output, found)
    results.conclude(output, found, tables(found))


if __name__ == "__main__":
    parser = options.parser(__doc__)
    parser.add_argument("--model", default="demo", help="demo, or NAME=PATH of a model")
    parser.add_argument("--agents", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=400, help="that each agent generates in a round")
    parser.add_argument("--rounds", type=options.at_least(1), default=7)
    parser.add_argument("--apart", action="store_true", help="the worker has cores of its own (Linux)")
    parser.add_argument("--output", help="name of the file under benchmarks/results (default: gateway-MODEL-BACKEND)")
    sys.exit(asyncio.run(main(parser.parse_args())))
