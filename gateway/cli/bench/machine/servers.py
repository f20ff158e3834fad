"""Both servers: started over the model as children, and asked over OpenAI's API.

`agentmem up` gets settings of its own: of the user's only those of the model and AGENTMEM_WORKER_….
"""

import asyncio
import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, Final

import grpc
import httpx2

from agentmem import AsyncClient, layout
from agentmem.channels import connect
from agentmem.process.models import VARIABLE as OFFLINE
from agentmem.process.sockets import listens
from agentmem.v1 import model_pb2
from agentmem.v1.model_pb2_grpc import ModelServiceStub
from gateway.api.contract_json import to_json
from gateway.api.reports import load_words, state_name
from gateway.cli.bench.completions import Client
from gateway.cli.bench.machine.children import Child, Failed
from gateway.cli.bench.machine.plan import OURS, THEIRS
from gateway.cli.bench.machine.subject import Subject
from gateway.cli.up.openblas import preload_here
from gateway.cli.up.readiness import gateway_addresses, unready
from gateway.cli.up.settings import flags

Tell = Callable[[str], None]

_GRACE_SECONDS: Final = 5.0
_PATIENCE: Final = _GRACE_SECONDS + layout.END_SECONDS
_PROBE_SECONDS, _INTERVAL, _SETTLED_INTERVAL = 2.0, 0.1, 0.5
_ANSWER_SECONDS: Final = 600.0
_HIDDEN: Final = ("source", "adapter", "calibration", "error", "tokenizer_hash", "fingerprint")
_OURS, _WORKER = "AGENTMEM_", "AGENTMEM_WORKER_"
_PLACES: Final = frozenset({"ADAPTER", "DATA", "LISTEN", "METRICS", "MODEL", "MODELS", "OTLP", "RUN_DIR", "STORE"})
"""Settings of the worker that lead to something of the user's."""

_WITHOUT_THINKING: Final = {"chat_template_kwargs": {"enable_thinking": False}}


class Stages:
    """Seconds by what a start was doing."""

    def __init__(self, now: float, stage: str = "process") -> None:
        self.seconds: dict[str, float] = {}
        self._stage, self._since = stage, now

    def at(self, stage: str, now: float) -> None:
        self.seconds[self._stage] = self.seconds.get(self._stage, 0.0) + now - self._since
        self._stage, self._since = stage, now


class Server(ABC):
    name: ClassVar[str]

    def __init__(self, root: Path, subject: Subject) -> None:
        self.root, self.subject = root, subject
        self._child: Child | None = None
        self._client: Client | None = None

    @abstractmethod
    async def start(self, tell: Tell) -> dict[str, Any]:
        """Return times of `began` and `ready`, and what else is known. Raises Failed."""

    @property
    def client(self) -> Client:
        """Raises Failed."""
        if self._client is None:
            raise Failed(f"{self.name} was not started")
        self.check()
        return self._client

    @property
    def log(self) -> Path:
        return self.root / f"{self.name}.log"

    def check(self) -> None:
        """Raises Failed."""
        if self._child is None or not self._child.runs:
            raise Failed(f"{self.name} ended; it wrote:\n{self._child.tail() if self._child else ''}")

    async def stop(self) -> None:
        if self._client is not None:
            await self._client.close()
        self._client = None
        await asyncio.to_thread(self.end)

    def end(self) -> None:
        if self._child is not None:
            self._child.end()

    def _launch(self, words: Sequence[str], environment: Mapping[str, str]) -> float:
        began = time.monotonic()
        self._child = Child(words, _PATIENCE, self.log, environment)
        return began

    def _reached(self, url: str, model: str) -> None:
        self._client = Client(url, model, self.subject.ends, _ANSWER_SECONDS, **_WITHOUT_THINKING)


class Agentmem(Server):
    name = OURS

    def __init__(self, root: Path, subject: Subject) -> None:
        super().__init__(root, subject)
        self._run = root / "run"
        self.model: model_pb2.Model | None = None

    @property
    def flags(self) -> list[str]:
        model = self.subject.model
        given = {"model": f"{model.model_id}={model.source}", "kv_bits": model.kv_bits, "offline": True}
        places = {"data": self.root / "data", "run_dir": self._run, "http": "127.0.0.1:0", "grpc": "127.0.0.1:0"}
        more = {"context_length": model.context_length, "grace": _GRACE_SECONDS, "metrics": ""}
        return flags({**given, **places, **more})

    async def start(self, tell: Tell) -> dict[str, Any]:
        began = self._launch(("gateway.cli.main", "up", *self.flags), environment())
        stages, worker = Stages(began), layout.worker_socket(self._run)
        while await unready(self._run, "gateway", _PROBE_SECONDS) != "":
            self.check()
            stage, words = await _load(worker)
            stages.at(stage, time.monotonic())
            tell(words)
            await asyncio.sleep(_INTERVAL)
        ready = time.monotonic()
        stages.at("ready", ready)
        addresses = gateway_addresses(self._run)
        self._address = addresses["grpc"]
        self._reached(f"http://{addresses['http']}", self.subject.name)
        async with self.asked() as agentmem:
            self.model = (await agentmem.models.get(self.subject.name)).raw
        if self.model.state == model_pb2.MODEL_STATE_FAILED:
            raise Failed(f"the model cannot be loaded: {self.model.error}")
        return {"began": began, "ready": ready, "stages": stages.seconds}

    def asked(self) -> AsyncClient:
        return AsyncClient(self._address, key="", tls=False, on_outage=lambda _: None)

    async def settle(self, tell: Tell, seconds: float) -> dict[str, Any]:
        """Wait until a new model is measured, at most so long; before, it is slower, and its KV does not stay."""
        began = time.monotonic()
        stages = Stages(began, "serving")
        async with self.asked() as agentmem:
            while True:
                self.model = found = (await agentmem.models.get(self.subject.name)).raw
                if not found.unmeasured and state_name(found) in ("loaded", "failed"):
                    break
                if (now := time.monotonic()) - began > seconds:
                    break
                stages.at(found.progress.stage or "serving", now)
                tell(f"this new model is measured, once: {load_words(found.progress)}" if found.progress.stage else "")
                await asyncio.sleep(_SETTLED_INTERVAL)
        took = time.monotonic() - began
        stages.at("", began + took)
        return {"seconds": took, "stages": stages.seconds if took > _SETTLED_INTERVAL else {}}

    def described(self) -> dict[str, Any]:
        """Return what the worker says of the loaded model, without names of the user's."""
        if self.model is None:
            raise Failed("the model was never loaded")
        return {name: value for name, value in to_json(self.model).items() if name not in _HIDDEN}


async def _load(worker: str) -> tuple[str, str]:
    """Return what the worker's load is doing, and the same in words."""
    if not await asyncio.to_thread(listens, worker):
        return "process", "its processes"
    async with connect(worker) as channel:
        try:
            answer = await ModelServiceStub(channel).ListModels(model_pb2.ListModelsRequest(), timeout=_PROBE_SECONDS)
        except grpc.aio.AioRpcError:
            return "process", "its processes"
    progress = answer.models[0].progress
    return progress.stage or state_name(answer.models[0]), load_words(progress) if progress.stage else ""


class MlxLm(Server):
    """`mlx_lm.server` with the worker's BLAS; its caches may take as much memory as our pool."""

    name = THEIRS

    def __init__(self, root: Path, subject: Subject) -> None:
        super().__init__(root, subject)
        self.directory = subject.directory
        self.cache_bytes = 0

    async def start(self, tell: Tell) -> dict[str, Any]:
        """Return when its health says ok: it loads the model meanwhile."""
        version()
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        words = ["mlx_lm", "server", "--host", "127.0.0.1", "--port", str(port), "--model", str(self.directory)]
        if self.cache_bytes:
            words += ["--prompt-cache-bytes", str(self.cache_bytes), "--prompt-cache-size", "1000"]
        began = self._launch(words, self._environment())
        url = f"http://127.0.0.1:{port}"
        async with httpx2.AsyncClient(trust_env=False, timeout=_ANSWER_SECONDS) as http:
            while not await _is_ok(http, f"{url}/health"):
                self.check()
                tell("its process")
                await asyncio.sleep(_INTERVAL)
        self._reached(url, "default_model")
        return {"began": began, "ready": time.monotonic()}

    async def copy_in_float32(self) -> None:
        """Take a copy, which MLX on a CPU computes many times as fast as 16 bits. Raises Failed."""
        into = self.root / "float32"
        words = ("mlx_lm", "convert", "--hf-path", str(self.directory), "--mlx-path", str(into), "--dtype", "float32")
        self._launch(words, self._environment())
        assert self._child is not None
        if await asyncio.to_thread(self._child.wait):
            raise Failed(f"mlx_lm convert failed; it wrote:\n{self._child.tail()}")
        self.directory = into

    @staticmethod
    def _environment() -> dict[str, str]:
        return {**os.environ, **preload_here().environment, "HF_HUB_OFFLINE": "1"}


async def _is_ok(http: httpx2.AsyncClient, url: str) -> bool:
    try:
        return (await http.get(url)).status_code == httpx2.codes.OK
    except httpx2.TransportError:
        return False


def version() -> str:
    """Raises Failed."""
    try:
        return metadata.version("mlx-lm")
    except metadata.PackageNotFoundError:
        raise Failed("mlx-lm is not installed") from None


def environment() -> dict[str, str]:
    """Return this process's variables without the user's settings of Agentmem, but for how the worker computes."""
    theirs = (_OURS, "OTEL_")
    return {name: value for name, value in os.environ.items() if not name.startswith(theirs)} | worker_variables()


def worker_variables() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name.startswith(_WORKER) or name == OFFLINE}
    return {name: value for name, value in kept.items() if name.removeprefix(_WORKER) not in _PLACES}
