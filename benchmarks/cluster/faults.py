"""Three machines, clients that ask any of them, and what is done to the machines meanwhile."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.cluster.clients import Door, Wanderer
from benchmarks.cluster.history import Operation
from benchmarks.cluster.postgres_pair import Pair
from benchmarks.nodes import HOST, SCRIPTED, Node
from benchmarks.ports import free_ports
from benchmarks.proxy import Proxy

NAMES: Final = "abc"
CLIENTS: Final = 8
AGENTS: Final = tuple(f"agent {number}" for number in range(6))
PAUSE: Final = 0.5
"""Seconds for which a process is stopped, or a network carries nothing."""
YEAR: Final = 365 * 86_400


@dataclass(frozen=True)
class Kinds:
    """The worker's module, and the class that starts nodes; with certificates they have gateways."""

    worker: str = SCRIPTED
    certificates: Path | None = None
    node: Callable[..., Node] = Node
    ports: Callable[[int], int] = free_ports


@dataclass(frozen=True)
class Pace:
    """Operations that are done between two faults, and while one lasts."""

    between: int
    during: int


class Machine:
    """A node, its way to both servers, and its clock."""

    def __init__(
        self, name: str, pair: Pair, stack: ExitStack, kind: Kinds, clock: Mapping[str, str], ports: int
    ) -> None:
        self._shift = Path(clock.get("AGENTMEM_CLOCK", "/dev/null"))
        self.proxies = [stack.enter_context(closing(Proxy(server.root / ".s.PGSQL.5432"))) for server in pair]
        hosts = ",".join(f"127.0.0.1:{proxy.port}" for proxy in self.proxies)
        url = f"postgresql://agentmem@{hosts}/postgres?gssencmode=disable"
        own: tuple[str, ...] = (f"--node={name}", f"--advertise={HOST}:{ports + 2}")
        if kind.certificates is not None:
            own = (*own, f"--cluster-tls={kind.certificates}")
        self.node = kind.node(
            (*own, "--cluster-survives=crash"),
            ("--seconds=0.005",),
            {"AGENTMEM_STORE_CLUSTER": url, **clock},
            kind.worker,
            () if kind.certificates is None else own,
            ports,
        )
        stack.callback(self.node.destroy)
        self.node.start()

    @contextmanager
    def without(self, failing: Callable[[Proxy], object]) -> Iterator[None]:
        with ExitStack() as stack:
            for proxy in self.proxies:
                stack.enter_context(failing(proxy))  # type: ignore[arg-type]
            yield

    def set_clock(self, ahead: int) -> None:
        """Its clock is so many seconds ahead."""
        self._shift.write_text(str(ahead))


class Drill:
    def __init__(self, pair: Pair, machines: list[Machine], clients: list[Wanderer], pace: Pace) -> None:
        self.pair, self.machines, self.clients, self._pace = pair, machines, clients, pace
        self.ended = asyncio.Event()
        self.running = [asyncio.create_task(client.run(self.ended)) for client in clients]

    async def wait(self, operations: int | None = None) -> None:
        """Until so many more have been done, by default those between two faults."""
        wanted = self._done() + (self._pace.between if operations is None else operations)
        while self._done() < wanted:
            for client in self.running:
                if client.done():
                    client.result()
            await asyncio.sleep(0.01)

    async def endure(self) -> None:
        await self.wait(self._pace.during)

    async def end(self) -> list[Operation]:
        self.ended.set()
        await asyncio.gather(*self.running)
        return [operation for client in self.clients for operation in client.history]

    async def lists(self) -> dict[str, tuple[str, ...]]:
        return {agent: await self.clients[0].doors[0].read(agent) for agent in AGENTS}

    def _done(self) -> int:
        return sum(len(client.history) for client in self.clients)


async def kill_worker(drill: Drill, machine: Machine) -> None:
    await _kill(drill, machine, "worker")


async def kill_gateway(drill: Drill, machine: Machine) -> None:
    await _kill(drill, machine, "gateway")


async def kill_store(drill: Drill, machine: Machine) -> None:
    await _kill(drill, machine, "store")


async def kill_node(drill: Drill, machine: Machine) -> None:
    await _kill(drill, machine)


async def _kill(drill: Drill, machine: Machine, *names: str) -> None:
    await asyncio.to_thread(machine.node.kill, *names)
    await drill.endure()
    machine.node.start(*names)


async def stop_worker(drill: Drill, machine: Machine) -> None:
    """SIGSTOP between the opening of an agent and its commit, as it comes."""
    machine.node.signal(signal.SIGSTOP, "worker")
    await drill.endure()
    machine.node.signal(signal.SIGCONT, "worker")


async def stop_store(_: Drill, machine: Machine) -> None:
    machine.node.signal(signal.SIGSTOP, "store")
    await asyncio.sleep(PAUSE)
    machine.node.signal(signal.SIGCONT, "store")


async def cut_off(drill: Drill, machine: Machine) -> None:
    with machine.without(Proxy.cut):
        await drill.endure()


async def lose_answers(_: Drill, machine: Machine) -> None:
    with machine.without(Proxy.losing_answers):
        await asyncio.sleep(PAUSE)


async def hold_packets(_: Drill, machine: Machine) -> None:
    with machine.without(Proxy.holding):
        await asyncio.sleep(PAUSE)


async def set_clocks(drill: Drill, machine: Machine) -> None:
    for ahead in (YEAR, -YEAR, 0):
        machine.set_clock(ahead)
        await drill.endure()


async def fail_over(drill: Drill, _: Machine) -> None:
    await asyncio.to_thread(drill.pair.fail_over)


Fault = Callable[[Drill, Machine], Awaitable[None]]
FAULTS: Final[tuple[Fault, ...]] = (
    *(cut_off, kill_worker, stop_worker, lose_answers, kill_store, stop_store),
    *(kill_gateway, hold_packets, set_clocks, kill_node, fail_over),
)


async def all_faults(drill: Drill, first: int = 0) -> list[str]:
    """Every fault once, on one node after the other from the `first` on."""
    for number, fault in enumerate(FAULTS, first):
        await drill.wait()
        machine = drill.machines[-1 if fault is set_clocks else number % len(NAMES)]
        await fault(drill, machine)
        await machine.node.ready()
    await drill.wait()
    return [fault.__name__ for fault in FAULTS]


def clock(directory: Path) -> dict[str, str]:
    """Variables of a machine whose clock a file moves."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if sys.platform != "linux" or compiler is None:
        return {}
    source, library = Path(__file__).parent / "clock.c", directory / "clock.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return {"LD_PRELOAD": str(library), "AGENTMEM_CLOCK": str(directory / "shift")}


@asynccontextmanager
async def drilling(
    pair: Pair, kind: Kinds, own_clock: Mapping[str, str], pace: Pace, seed: int = 0, *, gateways_only: bool = False
) -> AsyncIterator[Drill]:
    """The last machine's clock is one that can be set."""
    async with AsyncExitStack() as stack:
        processes = stack.enter_context(ExitStack())
        clocks = {NAMES[-1]: own_clock}
        first = kind.ports(3 * len(NAMES))  # of all at once, for it takes a while until they are listened on
        machines = [
            Machine(name, pair, processes, kind, clocks.get(name, {}), first + 3 * number)
            for number, name in enumerate(NAMES)
        ]
        for machine in machines:
            await machine.node.ready()
        doors = [
            await stack.enter_async_context(Door.to(machine.node, number))
            for machine in machines
            for number in range(1 if gateways_only else 0, len(machine.node.doors))
        ]
        clients = [Wanderer(str(each), doors, AGENTS, seed=CLIENTS * seed + each) for each in range(CLIENTS)]
        drill = Drill(pair, machines, clients, pace)
        try:
            yield drill
        finally:
            await drill.end()
