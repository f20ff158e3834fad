"""Throughput of agents that generate together, warm and cold, through the gateway, beside the engine in process.

    agentmem bench throughput [--lengths 1024 8192] [--agents 1 2 4 8] [--tokens 128] [--samples 3]
    agentmem bench throughput --model NAME=PATH --samples 2

Through the gateway's gRPC door, by clients in a process of their own (HTTP is in the benchmark `gateway`). All agents
of a measurement send at once, and share nothing of their contexts. A cold agent's prompt is computed; a warm agent has
its KV on disk (worker and store are killed before each sample; between measurements of a sample agents are evicted
from memory) and makes a real next turn of 50 new tokens. Where context, new tokens and answer are more than the model's
context, the context is shorter. Every turn is checked: prompt, reused tokens and their tier, generated tokens.

- "decode": tokens/s from the last agent's second token until the first agent is done: all generate, none is prefilled.
  Left out where less than a quarter of the tokens came then, as with cold agents that are done before the last begins.
- "end to end": all tokens over the time from sending until all are done.
- "engine": the same engine over the same weights, dtype and length in a process of its own, with the same BLAS and the
  threads that it takes by itself; its agents generate from memory, without text, streams or other processes. It takes
  turns with the stack in each sample, and is idle meanwhile. Ratios are within a sample.

On a machine of two cores the gateway and the clients take processor time from the engine that they would not take
elsewhere, so processor time a token is counted for each process, from sending until all are done. What the worker
takes beyond the engine is of decoding alone: its time while all generate, less the engine's of the same sample.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks import children, options, results
from benchmarks.children import Child
from benchmarks.live import MODULES, LiveStack, running
from benchmarks.models import model_directory, model_name
from benchmarks.pictures import of_throughput as plots
from benchmarks.prompts import NEW_TOKENS, next_turn, token_ids
from benchmarks.tables import Claim, Table, milliseconds, spread

__all__ = ["claims", "main", "plots", "tables"]

WAYS = ("warm", "cold", "engine")
_TOGETHER = 0.25
_WARM_UP_TOKENS = 16


class Throughput:
    """One stack, one process of clients and one of the engine alone. `tokens` is what each agent generates."""

    def __init__(self, stack: LiveStack, clients: Child, engine: Child, tokens: int) -> None:
        self._stack = stack
        self._clients = clients
        self._engine = engine
        self._tokens = tokens

    async def prepare(self, lengths: Sequence[int], agents: int) -> None:
        """What warm agents remember goes to disk, and out of memory."""
        for context in lengths:
            for number in range(agents):
                name = _base(context, number)
                await self._stack.prefill(name, token_ids(context, name))
                await self._stack.evict(name)

    async def restart(self, name: str, contexts: Sequence[int], agents: int) -> None:
        """Kill worker and store; then do what only the first turns of a worker do, with up to so many agents."""
        await self._stack.kill("worker", "store")
        name = f"warm-up of {name}"
        await self.measure(name, "cold", 1, min(contexts), _WARM_UP_TOKENS)
        for context in contexts:
            await self.measure(name, "warm", agents, context, _WARM_UP_TOKENS)
            await self.measure(name, "engine", agents, context, _WARM_UP_TOKENS)

    async def measure(self, name: str, way: str, agents: int, context: int, tokens: int = 0) -> dict[str, Any]:
        """One measurement of so many agents; `tokens` where they are not to generate what all do."""
        tokens = tokens or self._tokens
        if way == "engine":
            found: dict[str, Any] = await self._engine.ask(
                do="decode", agents=agents, context=context + NEW_TOKENS, tokens=tokens
            )
            return found
        names = [f"{name}, {way} {number} of {agents}, {context}" for number in range(agents)]
        if way == "warm":
            for number, agent in enumerate(names):
                await self._stack.fork(_base(context, number), agent)
            prompts = {
                agent: next_turn(token_ids(context, _base(context, number)), agent)
                for number, agent in enumerate(names)
            }
        else:
            prompts = {agent: token_ids(context + NEW_TOKENS, agent) for agent in names}
        before = self._cpu_seconds()
        sample: dict[str, Any] = await self._clients.ask(
            do="round",
            door="grpc",
            target=self._stack.addresses["grpc"],
            namespace="",
            model=self._stack.model,
            agents=names,
            token_ids=prompts,
            tokens=tokens,
            worker=self._stack.process("worker").pid,
        )
        used = {service: seconds - before[service] for service, seconds in self._cpu_seconds().items()}
        sample["cpu_seconds"] = {"clients": sample.pop("clients_cpu_seconds"), **used}
        check(sample["turns"], context + NEW_TOKENS, tokens, {"warm": context} if way == "warm" else {})
        for agent in names:
            await self._stack.evict(agent)
        return sample

    def _cpu_seconds(self) -> dict[str, float]:
        return {service: sum(self._stack.process(service).cpu_times()[:2]) for service in MODULES}


def _base(context: int, number: int) -> str:
    return f"base {number}, {context}"


def check(turns: Sequence[dict[str, Any]], prompt: int, generated: int, cached: dict[str, int]) -> None:
    """Raise RuntimeError where a turn was not what is to be measured."""
    for turn in turns:
        found = (turn["prompt"], turn["generated"], turn["cached"])
        if found != (wanted := (prompt, generated, cached)):
            raise RuntimeError(f"a turn had (prompt, generated, cached) {found} instead of {wanted}")


def context_of(length: int, limit: int, tokens: int) -> int:
    """Tokens of a context of nominally `length`, so that a next turn fits in the model's. Raises ValueError."""
    context = min(length, limit - NEW_TOKENS - tokens)
    if context < 1:
        raise ValueError(f"{tokens} tokens and {NEW_TOKENS} new ones leave no room in a context of {limit}")
    return context


def figures_of(samples: dict[str, list[dict[str, Any]]], agents: int, tokens: int) -> dict[str, Any]:
    """Of one number of agents at one length: `samples` by way, taken in turns."""
    engine = [sample["tokens_per_second"] for sample in samples["engine"]]
    per_token = [sample["cpu_seconds"] / (agents * tokens) for sample in samples["engine"]]
    found: dict[str, Any] = {
        "engine": {"decode": results.summary(engine), "cpu_seconds_per_token": {"engine": results.summary(per_token)}}
    }
    for way in WAYS[:2]:
        mine = samples[way]
        turns = [turn for sample in mine for turn in sample["turns"]]
        found[way] = {
            "end_to_end": results.summary([agents * tokens / sample["wall"] for sample in mine]),
            "end_to_end_per_agent": results.summary([tokens / turn["total"] for turn in turns]),
            "decode_per_agent": results.summary([(tokens - 1) / turn["decoding"] for turn in turns]),
            "first_token": results.summary([turn["first"] for turn in turns]),
            "cpu_seconds_per_token": {
                name: results.summary([sample["cpu_seconds"][name] / (agents * tokens) for sample in mine])
                for name in mine[0]["cpu_seconds"]
            },
        }
        if all(sample["together"]["share"] >= _TOGETHER for sample in mine):
            speeds = [sample["together"]["tokens_per_second"] for sample in mine]
            found[way]["decode"] = results.summary(speeds)
            found[way]["decode_ratio"] = results.summary([s / e for s, e in zip(speeds, engine, strict=True)])
            decoding = [sample["together"]["worker_cpu_seconds"] / sample["together"]["tokens"] for sample in mine]
            found[way]["decode_cpu_seconds_per_token"] = results.summary(decoding)
            beyond = [mine - alone for mine, alone in zip(decoding, per_token, strict=True)]
            found[way]["cpu_seconds_beyond_engine"] = results.summary(beyond)
    return {**found, "samples": samples}


def tables(figures: dict[str, Any]) -> list[Table]:
    """For each length: speeds and first tokens, and processor time a token."""
    found = []
    for length, measured in figures["measured"].items():
        rows, costs = [], []
        for agents, by_way in measured["agents"].items():
            for way in WAYS:
                each = by_way[way]
                rows.append(
                    (
                        f"{agents} {way}",
                        _number(each.get("decode")),
                        _ratio(each.get("decode_ratio")),
                        _number(each.get("decode_per_agent")),
                        _number(each.get("end_to_end")),
                        _number(each.get("end_to_end_per_agent")),
                        milliseconds(each["first_token"]) if "first_token" in each else "",
                    )
                )
                cost = each["cpu_seconds_per_token"]
                processes = ("engine" if way == "engine" else "worker", "gateway", "store", "clients")
                decoding = cost["engine"] if way == "engine" else each.get("decode_cpu_seconds_per_token")
                parts = (*(cost.get(process) for process in processes), decoding, each.get("cpu_seconds_beyond_engine"))
                costs.append((f"{agents} {way}", *map(_milliseconds_of, parts)))
        context = measured["context"]
        columns = ("agents", "decode", "to engine", "decode per agent", "end to end", "per agent", "first token")
        note = (
            f"Tokens/s. {context} tokens of context, {NEW_TOKENS} new ones, {figures['tokens']} generated. Medians "
            "(least–most) over samples, and for each agent over all agents and samples."
        )
        found.append(Table(f"Throughput at a context of {length} tokens", columns, rows, note))
        columns = ("agents", "worker or engine", "gateway", "store", "clients", "decoding", "beyond engine")
        note = (
            "Medians, from sending until all are done; the engine's of decoding alone. The last two columns are the "
            "worker's while all decode, and that less the engine's of the same sample."
        )
        found.append(Table(f"Processor time a generated token at {length} tokens", columns, costs, note))
    return found


def claims(figures: dict[str, Any]) -> list[Claim]:
    """Of the most agents: decoding through all three services, to the engine in process; what the worker adds to it."""
    found = []
    for length, measured in figures["measured"].items():
        agents, by_way = max(measured["agents"].items(), key=lambda item: int(item[0]))
        ratio = by_way["warm"].get("decode_ratio")
        text = f"decode of {agents} agents through all services at {length} tokens, to the engine in process"
        text += "" if ratio else " (they hardly generated together)"
        found.append(Claim(text, ratio["median"] if ratio else 0.0, 0.95, at_most=False))
        if beyond := by_way["warm"].get("cpu_seconds_beyond_engine"):
            text = f"the worker's processor time a token beyond the engine's, {agents} agents at {length} tokens"
            found.append(Claim(text, beyond["median"] * 1000, 0.6, at_most=True, unit=" ms"))
    return found


def _number(summary: dict[str, Any] | None) -> str:
    return spread(summary, 0 if summary["median"] >= 100 else 1) if summary else ""


def _ratio(summary: dict[str, Any] | None) -> str:
    return spread(summary, 3, "x") if summary else ""


def _milliseconds_of(summary: dict[str, Any] | None) -> str:
    return f"{summary['median'] * 1000:.2f} ms" if summary else ""


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = options.parser(__doc__)
    found.add_argument("--model", default="demo", help="demo, or NAME=DIRECTORY of a model")
    found.add_argument("--lengths", type=int, nargs="+", default=[1024, 8192], help="tokens of context")
    found.add_argument("--agents", type=options.at_least(1), nargs="+", default=[1, 2, 4, 8])
    found.add_argument("--tokens", type=options.at_least(2), default=128, help="that each agent generates")
    found.add_argument("--context-length", type=int, help="the worker's, where it is not what the model says")
    found.add_argument("--samples", type=options.at_least(1), default=3)
    found.add_argument("--output", default="", help="name under benchmarks/results (throughput-MODEL-BACKEND)")
    return found


async def main(arguments: argparse.Namespace) -> int:
    """Measure, writing after each measurement that has a sample of every way, and print; the exit status."""
    output = arguments.output or f"throughput-{model_name(arguments.model)}-{results.backend()}"
    length = {"AGENTMEM_WORKER_CONTEXT_LENGTH": str(arguments.context_length)} if arguments.context_length else {}
    found: dict[str, Any] = {"tokens": arguments.tokens, "measured": {}}
    samples: dict[tuple[int, int], dict[str, list[dict[str, Any]]]] = {}
    async with (
        running(arguments.model, environment=length) as stack,
        children.started("benchmarks.decoding_clients", computes=False) as clients,
        children.started("benchmarks.engine_alone", str(model_directory(arguments.model))) as engine,
    ):
        limit = (await stack.describe_model()).context_length
        contexts = {length: context_of(length, limit, arguments.tokens) for length in arguments.lengths}
        bench = Throughput(stack, clients, engine, arguments.tokens)
        await bench.prepare(list(contexts.values()), max(arguments.agents))
        for number in range(arguments.samples):
            await bench.restart(f"sample {number}", list(contexts.values()), max(arguments.agents))
            for length, context in contexts.items():
                for agents in arguments.agents:
                    by_way = samples.setdefault((length, agents), {way: [] for way in WAYS})
                    first = number % len(WAYS)
                    for way in (*WAYS[first:], *WAYS[:first]):
                        by_way[way].append(await bench.measure(f"sample {number}", way, agents, context))
                    measured = found["measured"].setdefault(str(length), {"context": context, "agents": {}})
                    measured["agents"][str(agents)] = figures_of(by_way, agents, arguments.tokens)
                    results.write(output, found)
    return results.conclude(output, found, tables(found), claims(found))


if __name__ == "__main__":
    sys.exit(asyncio.run(main(parser().parse_args())))
