"""Store, worker and gateway on real sockets: as processes, to be killed and started again, or hosted in this one."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import grpc
import httpx
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from agentmem.channels import connect
from agentmem.kv.blockfile import chain_hashes
from agentmem.v1 import agent_pb2, agent_pb2_grpc, cache_store_pb2, cache_store_pb2_grpc, model_pb2, types_pb2
from benchmarks.ports import free_ports
from tests import blas, scratch
from tests.system.client import Client, until
from tests.system.forked import Forked
from tests.system.hosted import Hosted

START_SECONDS = 180.0
_REAL = ("demo", "smollm2")
"""Models that are no random ones, by the names that tests give them."""
_FILES = ("products.json", "activations.json", "kv_setup.json")
_MEASURED: dict[str, dict[str, object]] = {name: {} for name in _FILES}
"""Workers' measurements of this machine: each first start would spend two seconds on the same ones."""


class Stack:
    """The three processes over one data directory. Everything is removed by `destroy`."""

    def __init__(
        self,
        model: str,
        *,
        worker_module: str = "inference_service",
        worker_flags: tuple[str, ...] = (),
        store_flags: tuple[str, ...] = (),
        gateway_flags: tuple[str, ...] = (),
        under: tuple[str, ...] = (),
        data: str = "data",
        hosted: bool = False,
    ) -> None:
        """`under`: a module that runs the services' modules, which follow it on the command line.

        With it the services are started by name. `hosted`: they run in this process and cannot be killed
        (`tests.system.hosted`). Else they are forked (`tests.system.forked`). A real model's worker has OpenBLAS, as
        `agentmem up` starts it where that is installed: most of its work is products.
        """
        self.root = Path(tempfile.mkdtemp(prefix="am-", dir=scratch.FOLDER))
        self.data, self.run = self.root / data, self.root / "run"
        self._under = under
        self._launched = Hosted if hosted else Forked
        self.model = model.partition("=")[0]
        self.ports = {name: free_port() for name in ("http", "grpc", "gateway", "worker", "store")}
        common = ("--data", str(self.data), "--run-dir", str(self.run), "--grace", "5")
        self._commands = {
            "store": ("cache_service", *common, "--metrics", self._address("store"), *store_flags),
            "worker": (
                *(worker_module, *common, "--model", model, "--metrics", self._address("worker")),
                *("--no-quality-check", *worker_flags),
            ),
            "gateway": (
                *("gateway", "--run-dir", str(self.run), "--grace", "5", "--metrics", self._address("gateway")),
                *("--worker-metrics", self._address("worker"), "--store-metrics", self._address("store")),
                *("--http", self._address("http"), "--grpc", self._address("grpc"), *gateway_flags),
            ),
        }
        self.processes: dict[str, Forked | Hosted | subprocess.Popen[bytes]] = {}
        self._clients: list[Client] = []

    def _address(self, name: str) -> str:
        return f"127.0.0.1:{self.ports[name]}"

    @property
    def url(self) -> str:
        """The HTTP door."""
        return f"http://{self._address('http')}"

    @property
    def grpc(self) -> str:
        """The gRPC door."""
        return self._address("grpc")

    def becomes(self, name: str, module: str) -> None:
        """From its next start on a process is another module, with the same flags."""
        self._commands[name] = (module, *self._commands[name][1:])

    def start(self, *names: str) -> None:
        """Start processes (default: store and worker) without waiting."""
        self._share_measured()
        for name in names or ("store", "worker"):
            log = self.root / f"{name}.log"
            log.touch()
            by_openblas = {blas.VARIABLE: "1"} if self.model in _REAL and name == "worker" else {}
            environment = {**os.environ, **by_openblas}
            if not self._under:
                self.processes[name] = self._launched(self._commands[name], log, environment)
                continue
            python = (sys.executable, "-W", "error::DeprecationWarning:agentmem", "-m")
            with log.open("ab") as output:
                command = (*python, *self._under, *self._commands[name])
                self.processes[name] = subprocess.Popen(command, stdout=output, stderr=output, env=environment)

    def _share_measured(self) -> None:
        """Give the worker what others have measured when they loaded models, and keep what it has."""
        for name, measured in _MEASURED.items():
            file = self.data / "worker" / name
            with contextlib.suppress(FileNotFoundError, ValueError):
                measured.update(json.loads(file.read_text()))
            for record in measured.values() if name == "kv_setup.json" else ():
                record.pop("bits", None)  # Which bits a model has is its worker's.
            if measured and not file.exists():
                file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                file.write_text(json.dumps(measured))

    async def ready(self, *names: str) -> None:
        """Wait until processes serve (default: those that were started)."""
        for name in names or tuple(self.processes):
            target = self.grpc if name == "gateway" else f"unix:{self.run / name}.sock"
            await self._wait(lambda target=target: serving(target), name)

    async def up(self, *names: str) -> None:
        self.start(*names)
        await self.ready(*(names or ("store", "worker")))

    async def renew(self, *names: str) -> None:
        """Start what has ended or was never started (default: store and worker) and wait."""
        gone = [name for name in names or ("store", "worker") if name not in self.processes]
        gone += [name for name, process in self.processes.items() if process.poll() is not None]
        if gone:
            self.start(*gone)
        await self.ready()
        if "store" in gone and "worker" in self.processes:  # which for a moment still says what it saw before
            await self._wait(lambda: reaching(f"unix:{self.run}/worker.sock"), "worker")

    async def empty(self) -> None:
        """Delete all agents, and close the clients: whoever comes next finds nothing."""
        while self._clients:
            await self._clients.pop().close()
        await self.renew()
        client = await self.client()
        await client.delete_all()
        await self._clients.pop().close()
        assert self.block_files() == self.window_files() == [], "files of agents that are deleted"

    def kill(self, *names: str, number: signal.Signals = signal.SIGKILL) -> None:
        """End processes and wait for their end."""
        for name in names:
            self.processes[name].send_signal(number)
        for name in names:
            self.processes.pop(name).wait(30)

    async def client(self, door: str = "worker", model: str = "") -> Client:
        """A client of the worker's socket or the gateway's gRPC door; it means the first model unless told another."""
        target = self.grpc if door == "gateway" else f"unix:{self.run}/worker.sock"
        client = Client(target, model or self.model)
        self._clients.append(client)
        return client

    async def ledger(self, agent: str, model: str = "") -> cache_store_pb2.Ledger:
        """Return the store's ledger of an agent on a model (default: the first)."""
        return (await self._open(agent, model)).ledger

    async def on_disk(self, agent: str) -> list[Path]:
        """Wait until the KV of all the agent's tokens is on disk; its files, in order."""
        client = await self.client()
        model = (await client.models.GetModel(model_pb2.GetModelRequest(), timeout=10)).model
        tokens = (await self.ledger(agent)).token_ids
        hashes = list(chain_hashes(model.fingerprint, "default", tokens))
        async with asyncio.timeout(60):
            while True:
                files = {f.chain_hash: Path(f.path) for f in (await self._open(agent, block_hashes=hashes)).files}
                if len(files) == len(hashes):
                    return [files[name] for name in hashes]
                await asyncio.sleep(0.02)

    async def _open(self, agent: str, model: str = "", **arguments: object) -> cache_store_pb2.OpenCacheResponse:
        channel = connect(f"unix:{self.run}/store.sock")
        try:
            key = types_pb2.AgentKey(namespace="default", agent_id=agent, model_id=model or self.model)
            request = cache_store_pb2.OpenCacheRequest(key=key, **arguments)  # type: ignore[arg-type]
            return await cache_store_pb2_grpc.CacheStoreServiceStub(channel).OpenCache(request, timeout=10)
        finally:
            await channel.close(None)

    async def metric(self, service: str, name: str, **labels: str) -> float:
        """A sample of a service's metrics page, summed over labels that are not named; 0 where there is none yet."""
        async with httpx.AsyncClient() as http:
            page = (await http.get(f"http://{self._address(service)}/metrics")).text
        samples = (each for family in text_string_to_metric_families(page) for each in family.samples)
        return sum(each.value for each in samples if each.name == name and labels.items() <= each.labels.items())

    async def until_running(self, turns: int) -> None:
        """Wait until the worker works on so many turns."""

        async def so_many() -> bool:
            return await self.metric("worker", "agentmem_num_requests_running") == turns

        await until(so_many)

    async def until_ready(self, status: int = 200, words: str = "") -> None:
        """Wait until the gateway's /readyz has this status, and these words."""
        async with httpx.AsyncClient(base_url=self.url) as http:

            async def says() -> bool:
                answer = await http.get("/readyz")
                return answer.status_code == status and words in answer.text

            await until(says)

    def logs(self, name: str) -> str:
        return (self.root / f"{name}.log").read_text(errors="replace")

    def block_files(self) -> list[Path]:
        return sorted((self.data / "blocks").rglob("*.safetensors"))

    def window_files(self) -> list[Path]:
        return sorted((self.data / "windows").rglob("*.safetensors"))

    async def destroy(self) -> None:
        for client in self._clients:
            await client.close()
        for name in [each for each in ("gateway", "worker", "store") if each in self.processes]:
            process = self.processes.pop(name)
            process.kill()
            await asyncio.to_thread(process.wait, 30)
        self._share_measured()
        shutil.rmtree(self.root, ignore_errors=True)

    async def _wait(self, condition: Callable[[], "asyncio.Future[bool]"], name: str) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not await condition():
            process = self.processes.get(name)
            if (process is not None and process.poll() is not None) or time.monotonic() > deadline:
                raise AssertionError(f"{name} did not become ready:\n{self.logs(name)[-4000:]}")
            await asyncio.sleep(0.05)


async def serving(target: str, service: str = "") -> bool:
    channel = connect(target)
    try:
        answer = await health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(service=service), timeout=1
        )
    except grpc.aio.AioRpcError:
        return False
    finally:
        await channel.close(None)
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


async def reaching(target: str) -> bool:
    async with connect(target) as channel:
        request = agent_pb2.ListAgentsRequest(namespace="default", page_size=1)
        try:
            await agent_pb2_grpc.AgentServiceStub(channel).ListAgents(request, timeout=1)
        except grpc.aio.AioRpcError:
            return False
    return True


_PORTS = range(20_000, 30_000)
_given: set[int] = set()


def free_port(count: int = 1) -> int:
    """The first of `count` TCP ports in a row that nobody listens on, and that no other stack of these tests was given.

    Minutes may pass before a stack listens on its ports. So each process of pytest-xdist has a share of its own.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    share = len(_PORTS) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    own = _PORTS[worker * share :][:share]
    while True:
        first = free_ports(count, own)
        ports = set(range(first, first + count))
        if _given.isdisjoint(ports):
            _given.update(ports)
            return first


def hosting(model: str, *names: str, **options: object) -> AbstractAsyncContextManager[Stack]:
    """A stack within this process that is up, and gone afterwards."""
    return running(model, *names, hosted=True, **options)


@asynccontextmanager
async def running(model: str, *names: str, **options: object) -> AsyncIterator[Stack]:
    """A stack of processes that is up, and gone afterwards."""
    stack = Stack(model, **options)  # type: ignore[arg-type]
    with blas.openblas() if options.get("hosted") and stack.model in _REAL else contextlib.nullcontext():
        try:
            await stack.up(*names)
            yield stack
        except BaseException:
            for log in sorted(stack.root.glob("*.log")):
                sys.stderr.write(f"--- {log.name}\n{log.read_text(errors='replace')[-6000:]}\n")
            raise
        finally:
            await stack.destroy()
