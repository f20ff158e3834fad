"""The servers: started over the same model on a port of 127.0.0.1, killed and started again.

All get as many threads, and MLX the BLAS that `agentmem up` preloads; the rest are defaults, but for a `Room`.
"""

import asyncio
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

import httpx

from agentmem.distribution import version
from agentmem.kv.blockfile import BLOCK_TOKENS
from benchmarks import live, ports
from benchmarks.models import Weights, kv_elements
from gateway.cli.bench.completions import Client
from gateway.cli.up.openblas import preload_here

_POLL_SECONDS = 0.02
_SETTLE_SECONDS = 60.0


@dataclass(frozen=True)
class Room:
    """`threads`, and `slots` conversations at once of up to `tokens` (0: the model's own). Memory `holds` KV of so
    many of `held_tokens`, or what the server takes by default."""

    threads: int
    slots: int
    tokens: int = 0
    holds: int | None = None
    held_tokens: int = 0


class Server(ABC):
    name: ClassVar[str]
    health: ClassVar[str]

    def __init__(self, root: Path, weights: Weights, room: Room) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.root, self.weights, self.room = root, weights, room
        self._process: asyncio.subprocess.Process | None = None
        self._client: Client | None = None

    @abstractmethod
    def command(self, port: int) -> list[str]:
        """The command line."""

    @abstractmethod
    def model(self) -> str:
        """The model's name in requests."""

    @abstractmethod
    def version(self) -> str:
        """The server's version and its weights."""

    def environment(self) -> dict[str, str]:
        return {}

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def client(self) -> Client:
        assert self._client is not None
        return self._client

    async def start(self) -> float:
        """Return seconds until it is healthy. Raises RuntimeError."""
        began = time.monotonic()
        port = ports.free_ports(1)
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self.command(port),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **thread_variables(self.room.threads), **self.environment()},
            )
        try:
            await self._healthy(f"http://127.0.0.1:{port}")
        except BaseException:
            await self.kill()
            raise
        self._client = Client(f"http://127.0.0.1:{port}", self.model(), end_tokens(self.weights.directory))
        return time.monotonic() - began

    async def kill(self) -> None:
        process = await self._forget()
        if process is not None:
            await live.kill_all(process)

    async def stop(self) -> None:
        process = await self._forget()
        if process is not None:
            await live.end(process)

    @property
    def log(self) -> Path:
        return self.root / "log"

    async def _forget(self) -> asyncio.subprocess.Process | None:
        if self._client is not None:
            await self._client.close()
        process, self._process, self._client = self._process, None, None
        return process

    async def _healthy(self, url: str) -> None:
        process = self._process
        assert process is not None
        async with asyncio.timeout(live.START_SECONDS), httpx.AsyncClient(trust_env=False) as http:
            while True:
                if process.returncode is not None:
                    raise RuntimeError(f"{self.name} did not start:\n{self.log.read_text(errors='replace')[-3000:]}")
                try:
                    if (await http.get(f"{url}{self.health}")).status_code == httpx.codes.OK:
                        return
                except httpx.TransportError:
                    pass
                await asyncio.sleep(_POLL_SECONDS)


class Agentmem(Server):
    name = "agentmem"
    health = "/readyz"

    def command(self, port: int) -> list[str]:
        return [
            *(sys.executable, "-m", "gateway.cli.main", "up", "--data", str(self.root / "data")),
            *("--run-dir", str(self.root / "run"), "--model", f"{self.weights.name}={self.weights.directory}"),
            *("--http", f"127.0.0.1:{port}", "--grpc", "127.0.0.1:0", "--metrics", ""),
        ]

    def environment(self) -> dict[str, str]:
        """Give the pool whole blocks of the conversations that it is to hold."""
        found = {"AGENTMEM_WORKER_CONTEXT_LENGTH": str(self.room.tokens)} if self.room.tokens else {}
        if self.room.holds is not None and self._described.exists():
            blocks = self.room.holds * -(-self.room.held_tokens // BLOCK_TOKENS)
            found["AGENTMEM_WORKER_POOL_BYTES"] = str(blocks * BLOCK_TOKENS * self._bytes_per_token())
        return found

    def model(self) -> str:
        return self.weights.name

    def version(self) -> str:
        return f"agentmem {version()}, weights in {self.weights.dtype}, KV in {self._kv_bits()} bits"

    async def start(self) -> float:
        """Start it twice where a pool's size needs the bytes of a token, which depend on the bits that are chosen."""
        seconds = await super().start()
        if self._described.exists():
            return seconds
        self._described.write_text(json.dumps(await self.client.look(f"/v1/models/{self.model()}")))
        if self.room.holds is None:
            return seconds
        await self.stop()
        return await super().start()

    async def settle(self, agents: Sequence[str]) -> None:
        async with asyncio.timeout(_SETTLE_SECONDS):
            for agent in agents:
                while not await self._is_on_disk(agent):
                    await asyncio.sleep(_POLL_SECONDS)

    async def _is_on_disk(self, agent: str) -> bool:
        found = (await self.client.look(f"/v1/agents/{quote(agent)}?model={quote(self.model())}"))["agent"]
        return int(found["warm_tokens"]) >= int(found["tokens"])

    @property
    def _described(self) -> Path:
        return self.root / "model.json"

    def _bytes_per_token(self) -> int:
        return int(json.loads(self._described.read_text())["agentmem"]["kv_bytes_per_token"])

    def _kv_bits(self) -> str:
        return str(json.loads(self._described.read_text())["agentmem"]["kv_bits"])


class MlxLm(Server):
    """`mlx_lm.server`, with the worker's own BLAS."""

    name = "mlx_lm.server"
    health = "/health"
    _CACHES = 1000
    """Only bytes limit them; the default of 10 is less than 8 agents fill."""

    def command(self, port: int) -> list[str]:
        found = [
            *(sys.executable, "-m", "mlx_lm", "server", "--host", "127.0.0.1", "--port", str(port)),
            *("--model", str(self.weights.directory), "--prompt-cache-size", str(self._CACHES)),
        ]
        if self.room.holds is not None:
            tokens, size = -(-self.room.held_tokens // 256) * 256, 4 if self.weights.dtype == "float32" else 2
            held = self.room.holds * tokens * kv_elements(self.weights.directory) * size
            found += ["--prompt-cache-bytes", str(held)]
        return found

    def environment(self) -> dict[str, str]:
        return {**preload_here().environment, "HF_HUB_OFFLINE": "1"}

    def model(self) -> str:
        return "default_model"

    def version(self) -> str:
        return f"mlx-lm {metadata.version('mlx-lm')}, weights and KV in {self.weights.dtype}"


class LlamaCpp(Server):
    name = "llama.cpp"
    health = "/health"

    def __init__(self, root: Path, weights: Weights, room: Room, program: Sequence[str]) -> None:
        super().__init__(root, weights, room)
        self._program = program

    def command(self, port: int) -> list[str]:
        slots = self.room.holds or self.room.slots
        found = [
            *(*self._program, "--model", str(self.weights.gguf), "--host", "127.0.0.1", "--port", str(port)),
            *("--threads", str(self.room.threads), "--threads-batch", str(self.room.threads)),
            *("--parallel", str(slots), "--ctx-size", str(slots * self.room.tokens)),
        ]
        return [*found, "--cache-ram", "0"] if self.room.holds is not None else found

    def model(self) -> str:
        return self.weights.name

    def version(self) -> str:
        told = subprocess.run([*self._program, "--version"], capture_output=True, text=True, check=False, timeout=60)
        lines = [line for line in (told.stdout + told.stderr).splitlines() if line.startswith("version")]
        assert self.weights.gguf is not None
        return f"llama.cpp {lines[0] if lines else 'of an unknown version'}, {self.weights.gguf.name}, KV in float16"


def found_llama_server(given: str | None) -> list[str] | str:
    """Return the command of `given`, or of PATH; or why there is none."""
    program = shlex.split(given) if given else ["llama-server"]
    if program and shutil.which(program[0]):
        return program
    return f"no {program[0] if program else 'command'} in PATH" if given else "no llama-server in PATH"


def thread_variables(threads: int) -> dict[str, str]:
    return dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))


def end_tokens(directory: Path) -> list[int]:
    added = json.loads((directory / "tokenizer.json").read_text())["added_tokens"]
    return [token["id"] for token in added if token["special"]]
