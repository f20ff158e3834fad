"""Time to first token by length: cold, warm, warm from the disk itself, and hot, beside mlx-lm.

    agentmem bench ttft [--lengths 1000 2000 4000 8000 16000 32000] [--samples 3]
    agentmem bench ttft --model llama-3.1-8b=DIRECTORY --samples 2
    agentmem bench ttft --lengths 16 32 64 128 256 512 --samples 9    the length from which restoring is worth it

Through the gateway, one turn of 50 new tokens at a time. `cold`: nobody has seen the prompt; `warm`: after a SIGKILL of
worker and store; `hot`: the turn after that; `dropped`: the files were dropped from the page cache. A short agent's
turn goes first after each restart. Beside them, in one process: mlx-lm's BatchGenerator, its load_prompt_cache in the
compute dtype and in 4 bits, and mx.load of the agent's files, which verifies nothing. The first sample is not counted,
but where computing takes more than --cold-seconds. KV of any length is restored: `min_restore_tokens` is 1.
"""

import argparse
import asyncio
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks import children, options, page_cache, results
from benchmarks.children import Child
from benchmarks.known_agents import KnownAgents
from benchmarks.live import running
from benchmarks.models import kv_bytes_per_token, model_directory, model_name
from benchmarks.prompts import NEW_TOKENS, Prompts, token_ids
from benchmarks.ttft.in_process import KINDS, saved
from benchmarks.ttft.report import row, tables
from inference_service.engine.device import worth_restoring

MOST_RESIDENT = 0.02
"""Files of which less is in memory count as dropped."""
FIRST = "the first after a restart"
FIRST_TOKENS = 600


class Bench:
    def __init__(
        self, agents: KnownAgents, child: Child, prompts: Prompts, scratch: Path, arguments: argparse.Namespace
    ) -> None:
        self._agents, self._child, self._prompts, self._arguments = agents, child, prompts, arguments
        self._scratch = scratch
        self._files: dict[int, list[Path]] = {}
        self._raw: dict[int, dict[str, list[float]]] = {length: defaultdict(list) for length in arguments.lengths}
        self._restarts: dict[str, list[float]] = defaultdict(list)
        self._left: list[float] = []
        self._failed: dict[str, str] = {}
        self._cold_runs: dict[int, int] = {}
        self._bytes: dict[int, dict[str, int]] = {}
        self.output = arguments.output or f"ttft-{model_name(arguments.model)}-{results.backend()}"

    async def run(self) -> None:
        lengths, samples = self._arguments.lengths, self._arguments.samples
        await self._agents.remember(FIRST, FIRST_TOKENS)
        for length in lengths:
            await self._begin(length)
        for number in range(samples + 1):
            await self._round(number)
        for length in lengths:
            while len(self._raw[length]["cold"]) < self._cold_runs[length]:
                await self._cold(length)

    async def _begin(self, length: int) -> None:
        first, files = await self._agents.remember(_agent(length), length)
        self._files[length] = files
        for number in range(self._arguments.samples + 1):
            await self._agents.stack.fork(_agent(length), _agent(length, number))
            await self._agents.stack.fork(_agent(length), _agent(length, number, "dropped"))
        await self._agents.stack.evict(_agent(length))
        prompt = token_ids(length + self._arguments.new_tokens, length)
        theirs = await self._child.ask(do="cold", token_ids=prompt, save=length)
        theirs_files = {kind: _size([saved(self._scratch, kind, length)]) for kind in KINDS}
        self._bytes[length] = {"agentmem": _size(files), **theirs_files}
        long = max(first.first, theirs) > self._arguments.cold_seconds
        self._cold_runs[length] = 1 if long else self._arguments.samples + 1
        self._note(length, cold=first.first, mlx_lm_cold=theirs)

    async def _cold(self, length: int) -> None:
        tokens = length + self._arguments.new_tokens
        ours = await self._agents.cold(tokens)
        prompt = token_ids(tokens, f"{length} {len(self._raw[length]['cold'])}")
        self._note(length, cold=ours.first, mlx_lm_cold=await self._child.ask(do="cold", token_ids=prompt))

    async def _round(self, number: int) -> None:
        self._restarts["seconds"].append(await self._agents.stack.kill("worker", "store"))
        await self._agents.stack.fork(FIRST, f"{FIRST}: {number}")
        first = await self._agents.next_turn(f"{FIRST}: {number}", "warm", FIRST_TOKENS)
        self._restarts["first"].append(first.first)
        for length in self._arguments.lengths:
            await self._turns(length, number)
            await self._others(length, number)

    async def _turns(self, length: int, number: int) -> None:
        new, files = self._arguments.new_tokens, self._files[length]
        agent, other = _agent(length, number), _agent(length, number, "dropped")
        warm = await self._agents.next_turn(agent, "warm", length)
        if warm.load_bytes != _size(files):
            raise RuntimeError(f"a warm turn read {warm.load_bytes} bytes, and the agent's files have {_size(files)}")
        hot = await self._agents.next_turn(agent, "hot", length + new + 1)
        raw = await self._child.ask(do="raw", paths=[str(path) for path in files])
        self._note(length, warm=warm.first, load=warm.load, raw=raw, hot=hot.first)
        await self._agents.stack.evict(agent)
        if self._droppable(files):
            turn = await self._agents.next_turn(other, "warm", length)
            self._note(length, dropped=turn.first)
            await self._agents.stack.evict(other)

    async def _others(self, length: int, number: int) -> None:
        new_ids = self._prompts.ids_of(self._prompts.text(self._arguments.new_tokens, f"{length} {number}"))
        for kind in KINDS:
            name = f"mlx_lm_{kind.replace(' ', '_')}"
            asked = {"do": "resumed", "kind": kind, "tokens": length, "new_ids": new_ids}
            for way in ("_dropped", "") if self._droppable([saved(self._scratch, kind, length)]) else ("",):
                seconds = await self._child.ask(**asked)
                if isinstance(seconds, str):
                    self._failed[name] = seconds
                else:
                    self._note(length, **{name + way: seconds})

    def _droppable(self, files: list[Path]) -> bool:
        page_cache.drop(files)
        self._left.append(page_cache.resident(files))
        return self._left[-1] <= MOST_RESIDENT

    def _note(self, length: int, **seconds: float) -> None:
        for name, value in seconds.items():
            self._raw[length][name].append(value)
        results.write(self.output, self.figures)

    @property
    def figures(self) -> dict[str, Any]:
        return {
            "model": model_name(self._arguments.model),
            "backend": results.backend(),
            "new_tokens": self._arguments.new_tokens,
            "restart": {name: results.summary(samples) for name, samples in self._restarts.items()},
            "failed": self._failed,
            "page_cache_left": max(self._left, default=1.0),
            "min_restore_tokens": worth_restoring(),
            "lengths": {
                str(length): {"bytes": self._bytes.get(length, {}), **row(raw)}
                for length, raw in self._raw.items()
                if raw
            },
        }


def _agent(length: int, number: int | None = None, way: str = "") -> str:
    return f"{length}" if number is None else f"{length}, round {number} {way}".strip()


def _size(files: list[Path]) -> int:
    return sum(path.stat().st_size for path in files)


async def main(arguments: argparse.Namespace) -> None:
    directory, lengths = model_directory(arguments.model), arguments.lengths
    environment = {
        "AGENTMEM_WORKER_CONTEXT_LENGTH": str(max(lengths) + 1024),
        "AGENTMEM_WORKER_MIN_RESTORE_TOKENS": "1",
        "AGENTMEM_WORKER_POOL_BYTES": str(2 * (sum(lengths) + 8192) * kv_bytes_per_token(directory)),
    }
    with tempfile.TemporaryDirectory(prefix="agentmem-") as scratch:
        async with (
            children.started("benchmarks.ttft.in_process", str(directory), scratch) as child,
            running(arguments.model, environment=environment) as stack,
        ):
            prompts = Prompts(directory)
            bench = Bench(KnownAgents(stack, prompts, arguments.new_tokens), child, prompts, Path(scratch), arguments)
            await bench.run()
    found = bench.figures
    results.conclude(bench.output, found, tables(found))


def parser() -> argparse.ArgumentParser:
    found = options.parser(__doc__, "ttft-MODEL-BACKEND")
    found.add_argument("--model", default="demo", help="demo, or NAME=DIRECTORY of a model without sliding layers")
    found.add_argument("--lengths", type=options.at_least(2), nargs="+", default=[1000, 2000, 4000, 8000, 16000, 32000])
    found.add_argument("--new-tokens", type=options.at_least(1), default=NEW_TOKENS, help="that the next turn appends")
    found.add_argument(
        "--samples", type=options.at_least(0), default=3, help="rounds, after one to warm up; 0: that one only"
    )
    found.add_argument("--cold-seconds", type=float, default=20, help="longer prompts are computed once")
    return found


if __name__ == "__main__":
    sys.exit(asyncio.run(main(parser().parse_args())))
