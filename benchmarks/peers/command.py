"""Agentmem, mlx_lm.server and llama.cpp's server over the same weights, by one client over OpenAI's API.

    agentmem bench peers [--servers agentmem mlx_lm.server llama.cpp] [--llama-server COMMAND]
    agentmem bench peers --model NAME=DIRECTORY --gguf FILE

A chat that grows, a SIGKILL in its middle, 8 agents in turn and at once, and more agents than memory holds. Servers
take turns within each sample. The model is SmolLM2-135M-Instruct: its GGUF file for llama.cpp, the same weights in
float32 (on a CPU) for the others; all get as many threads. An answer with other lengths or a wrong end is not counted.

llama.cpp's server is `llama-server` in PATH, or what --llama-server says. It can be built from the sdist of
llama-cpp-python:

    pip download --no-deps --no-binary :all: llama-cpp-python==0.3.36 && tar xf llama_cpp_python-0.3.36.tar.gz
    cd llama_cpp_python-0.3.36/vendor/llama.cpp && cmake -B build && cmake --build build -t llama-server
"""

import argparse
import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import options, results
from benchmarks.live import scratch
from benchmarks.models import REAL, Weights, weights
from benchmarks.packages import Unavailable
from benchmarks.peers.report import tables
from benchmarks.peers.scenarios import CROWDED, ONCE, PAUSE_SECONDS, SCENARIOS, Chat, Sizes
from benchmarks.peers.servers import Agentmem, LlamaCpp, MlxLm, Room, Server, found_llama_server
from benchmarks.prompts import Prompts

SERVERS = (Agentmem.name, MlxLm.name, LlamaCpp.name)
_TEMPLATE_TOKENS = 16
"""A chat template puts at most so many around a turn's two messages."""


class Peers:
    """The servers, each over the directory that it had in the room before."""

    def __init__(self, names: Sequence[str], root: Path, given: Weights, llama_server: Sequence[str]) -> None:
        self._names, self._root, self._weights, self._llama_server = names, root, given, llama_server
        self._words = Prompts(given.directory)
        self.versions: dict[str, str] = {}
        self.starts: dict[str, list[float]] = {}

    @contextlib.asynccontextmanager
    async def running(self, room: Room, sizes: Sizes) -> AsyncIterator[list[Server]]:
        servers = [self.server(name, room) for name in self._names]
        try:
            for server in servers:
                seconds = await server.start()
                if server.name not in self.versions:
                    self.versions[server.name], self.starts[server.name] = server.version(), [seconds]
                chat = Chat(server, self._words, replace(sizes, context=sizes.new), "warm-up")
                for _ in range(2):
                    if problem := (await chat.say()).problem(sizes.generated):
                        raise RuntimeError(f"{server.name} does not answer: {problem}; its log is {server.log}")
            yield servers
        finally:
            for server in servers:
                await server.stop()

    async def measure(self, scenario: str, servers: Sequence[Server], sizes: Sizes, samples: int) -> dict[str, Any]:
        found: dict[str, list[dict[str, Any]]] = {server.name: [] for server in servers}
        for number in range(samples):
            first = number % len(servers)
            for server in (*servers[first:], *servers[:first]):
                sample = await SCENARIOS[scenario](server, self._words, sizes, number)
                found[server.name].append(sample.found())
                await asyncio.sleep(PAUSE_SECONDS)
        return found

    def server(self, name: str, room: Room) -> Server:
        root = self._root / name
        if name == LlamaCpp.name:
            return LlamaCpp(root, self._weights, room, self._llama_server)
        return (Agentmem if name == Agentmem.name else MlxLm)(root, self._weights, room)


def rooms(arguments: argparse.Namespace) -> tuple[Room, Room]:
    turn = arguments.new + arguments.generated + _TEMPLATE_TOKENS
    held = arguments.context + _TEMPLATE_TOKENS + (1 + arguments.rounds) * turn
    longest = arguments.context + _TEMPLATE_TOKENS + max(arguments.turns, 1 + arguments.rounds, 3) * turn
    tokens = -(-max(longest, arguments.context + 256) // 256) * 256
    slots = arguments.agents
    return Room(arguments.threads, slots, tokens), Room(arguments.threads, slots, tokens, arguments.holds, held)


async def main(arguments: argparse.Namespace) -> int:
    console = Console()
    missing: dict[str, str] = {}
    names = list(dict.fromkeys(arguments.servers))
    program = found_llama_server(arguments.llama_server)
    with scratch() as root:
        try:
            given = weights(arguments.model, arguments.gguf, root)
        except Unavailable as problem:
            console.print(f"the model cannot be had: {problem}")
            return 2
        if LlamaCpp.name in names and (isinstance(program, str) or given.gguf is None):
            names.remove(LlamaCpp.name)
            missing[LlamaCpp.name] = program if isinstance(program, str) else "the model has no GGUF file; give --gguf"
            console.print(f"without {LlamaCpp.name}: {missing[LlamaCpp.name]}")
        if not names:
            return 2
        peers = Peers(names, root, given, program if isinstance(program, list) else [])
        return await measured(peers, given, missing, arguments, console)


async def measured(
    peers: Peers, given: Weights, missing: dict[str, str], arguments: argparse.Namespace, console: Console
) -> int:
    sizes = Sizes(**{name: getattr(arguments, name) for name in Sizes.__dataclass_fields__})
    asked = {**vars(sizes), "model": given.name, "threads": arguments.threads, "holds": arguments.holds}
    output = arguments.output or f"peers-{results.backend()}"
    scenarios: dict[str, Any] = {}
    for room, crowded in zip(rooms(arguments), (False, True), strict=True):
        if not (wanted := [name for name in arguments.scenarios if (name in CROWDED) is crowded]):
            continue
        async with peers.running(room, sizes) as servers:
            for name in wanted:
                console.print(f"{name} …")
                samples = 1 if name in ONCE else arguments.samples
                scenarios[name] = await peers.measure(name, servers, sizes, samples)
                found = {
                    **{"asked": asked, "servers": peers.versions, "missing": missing, "starts": peers.starts},
                    "scenarios": {each: scenarios[each] for each in SCENARIOS if each in scenarios},
                }
                results.write(output, found)
    return results.conclude(output, found, tables(found))


def parser() -> argparse.ArgumentParser:
    found = options.parser(__doc__, "peers-BACKEND")
    found.add_argument("--servers", nargs="+", choices=SERVERS, default=SERVERS)
    found.add_argument("--scenarios", nargs="+", choices=tuple(SCENARIOS), default=tuple(SCENARIOS))
    found.add_argument("--llama-server", metavar="COMMAND", help="llama.cpp's server (default: llama-server in PATH)")
    found.add_argument("--model", default=REAL[0], help=f"{', '.join(REAL)}, demo, or NAME=DIRECTORY of a model")
    found.add_argument("--gguf", type=Path, metavar="FILE", help="the same model for llama.cpp")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    found.add_argument("--threads", type=options.at_least(1), default=cores, help="of each server (default: all cores)")
    found.add_argument("--samples", type=options.at_least(1), default=2, help="of all that have one agent")
    found.add_argument("--context", type=options.at_least(1), default=264, help="tokens that an agent knows at first")
    found.add_argument("--new", type=options.at_least(1), default=48, help="tokens of each message")
    found.add_argument("--generated", type=options.at_least(2), default=8, help="tokens of each answer")
    found.add_argument("--turns", type=options.at_least(1), default=4, help="of the chat that grows")
    found.add_argument("--agents", type=options.at_least(1), default=8)
    found.add_argument("--holds", type=options.at_least(1), default=3, help="agents that a crowded memory holds")
    found.add_argument("--rounds", type=options.at_least(1), default=1, help="round robin")
    return found


if __name__ == "__main__":
    sys.exit(asyncio.run(main(parser().parse_args())))
