"""Three machines, clients that ask any of them, and what is done to the machines meanwhile."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.cluster.clients import Door, Wanderer
from benchmarks.cluster.clusters import cluster
from benchmarks.cluster.history import Operation
from benchmarks.cluster.postgres import Pair
from benchmarks.nodes import Node
from benchmarks.proxy import Proxy

_NODES: Final = 3
CLIENTS: Final = 8
AGENTS: Final = tuple(f"agent {number}" for number in range(6))
PAUSE: Final = 0.5
"""Seconds for which a process is stopped, or a network carries nothing."""
YEAR: Final = 365 * 86_400


@dataclass(frozen=True)
class Pace:
    """Operations between two faults, and during one."""

    between: int
    during: int


@dataclass(frozen=True)
class Machine:
    """A node, its ways to both servers, and the file that moves its clock, if that is one that can be set."""

    node: Node
    proxies: Sequence[Proxy]
    shift: Path

    @contextmanager
    def without(self, failing: Callable[[Proxy], object]) -> Iterator[None]:
        with ExitStack() as stack:
            for proxy in self.proxies:
                stack.enter_context(failing(proxy))  # type: ignore[arg-type]
            yield


class Drill:
    def __init__(self, pair: Pair, machines: list[Machine], clients: list[Wanderer], pace: Pace) -> None:
        self.pair, self.machines, self.clients, self._pace = pair, machines, clients, pace
        self.ended = asyncio.Event()
        self.running = [asyncio.create_task(client.run(self.ended)) for client in clients]

    async def wait(self, operations: int | None = None) -> None:
        """Wait for so many more operations, by default those between two faults."""
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


Fault = Callable[[Drill, Machine], Awaitable[None]]


def _killing(*names: str) -> Fault:
    async def kill(drill: Drill, machine: Machine) -> None:
        await asyncio.to_thread(machine.node.kill, *names)
        await drill.endure()
        machine.node.start(*names)

    return kill


async def stop_worker(drill: Drill, machine: Machine) -> None:
    """SIGSTOP wherever a turn is, between the opening of an agent and its commit."""
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
        machine.shift.write_text(str(ahead))
        await drill.endure()


async def fail_over(drill: Drill, _: Machine) -> None:
    await asyncio.to_thread(drill.pair.fail_over)


SET_CLOCKS: Final = "set_clocks"
FAULTS: Final[dict[str, Fault]] = {
    "cut_off": cut_off,
    "kill_worker": _killing("worker"),
    "stop_worker": stop_worker,
    "lose_answers": lose_answers,
    "kill_store": _killing("store"),
    "stop_store": stop_store,
    "kill_gateway": _killing("gateway"),
    "hold_packets": hold_packets,
    SET_CLOCKS: set_clocks,
    "kill_node": _killing(),
    "fail_over": fail_over,
}


async def all_faults(drill: Drill, first: int = 0) -> list[str]:
    """Inject every fault once, on one node after the other from the `first` on."""
    for number, (name, fault) in enumerate(FAULTS.items(), first):
        await drill.wait()
        machine = drill.machines[-1 if name == SET_CLOCKS else number % _NODES]
        await fault(drill, machine)
        await machine.node.ready()
    await drill.wait()
    return [*FAULTS]


def clock(directory: Path) -> dict[str, str]:
    """Return variables of a machine whose clock a file moves."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if sys.platform != "linux" or compiler is None:
        return {}
    source, library = Path(__file__).parent / "clock.c", directory / "clock.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return {"LD_PRELOAD": str(library), "AGENTMEM_CLOCK": str(directory / "shift")}


@asynccontextmanager
async def drilling(
    pair: Pair,
    own_clock: Mapping[str, str],
    pace: Pace,
    seed: int = 0,
    *,
    gateways_only: bool = False,
    made: Callable[..., Node] = Node,
) -> AsyncIterator[Drill]:
    """Only the last machine has `own_clock`."""
    async with AsyncExitStack() as stack:
        ways = [
            [stack.enter_context(closing(Proxy(server.root / ".s.PGSQL.5432"))) for server in pair]
            for _ in range(_NODES)
        ]
        environments = [_through(proxies) for proxies in ways]
        environments[-1] |= own_clock
        started = cluster("", _NODES, ("--seconds=0.005",), made=made, environments=environments)
        nodes = (await stack.enter_async_context(started)).nodes.values()
        shift = Path(own_clock.get("AGENTMEM_CLOCK", "/dev/null"))
        machines = [Machine(node, proxies, shift) for node, proxies in zip(nodes, ways, strict=True)]
        doors = [
            await stack.enter_async_context(Door.to(node, number))
            for node in nodes
            for number in range(1 if gateways_only else 0, len(node.doors))
        ]
        clients = [Wanderer(str(each), doors, AGENTS, seed=CLIENTS * seed + each) for each in range(CLIENTS)]
        drill = Drill(pair, machines, clients, pace)
        try:
            yield drill
        finally:
            await drill.end()


def _through(proxies: Sequence[Proxy]) -> dict[str, str]:
    hosts = ",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies)
    return {"AGENTMEM_STORE_CLUSTER": f"postgresql://agentmem@{hosts}/postgres?gssencmode=disable"}
