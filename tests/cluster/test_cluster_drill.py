"""Three nodes, each a store, a worker and a gateway, on one ledger: killed, stopped, cut off, a clock that jumps."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.cluster.history import Append, Kind, Operation, Outcome, violations
from gateway.cli.cluster.certificates import authority, issue
from tests import postgres
from tests.cluster.clients import Door, Wanderer
from tests.cluster.nodes import Node
from tests.cluster.proxy import Proxy
from tests.full_matrix import FULL
from tests.postgres_pair import Pair, paired
from tests.system.stack import free_port

NAMES = "abc"
HOST = "127.0.0.1"
CLIENTS = 8
AGENTS = [f"agent {number}" for number in range(6)]
BETWEEN, DURING = (600, 100) if FULL else (40, 15)
"""Operations between two faults, and while one lasts."""
PAUSE = 0.5
"""Seconds for which a process is stopped, or a network carries nothing."""
YEAR = 365 * 86_400


@dataclass(frozen=True)
class Kinds:
    """What nodes are: which module is their worker; with certificates they have gateways."""

    worker: str = "benchmarks.cluster.scripted_worker"
    certificates: Path | None = None


class Machine:
    """A node, its way to both servers, and its clock."""

    def __init__(self, name: str, pair: Pair, stack: ExitStack, kind: Kinds, clock: dict[str, str]) -> None:
        self._shift = Path(clock.get("AGENTMEM_CLOCK", "/dev/null"))
        self.proxies = [stack.enter_context(closing(Proxy(server.root / ".s.PGSQL.5432"))) for server in pair]
        hosts = ",".join(f"127.0.0.1:{proxy.port}" for proxy in self.proxies)
        url = f"postgresql://agentmem@{hosts}/postgres?gssencmode=disable"
        own: tuple[str, ...] = (f"--node={name}", f"--advertise={HOST}:{free_port()}")
        if kind.certificates is not None:
            own = (*own, f"--cluster-tls={kind.certificates}")
        self.node = Node(
            (*own, "--cluster-survives=crash"),
            ("--seconds=0.005",),
            {"AGENTMEM_STORE_CLUSTER": url, **clock},
            kind.worker,
            () if kind.certificates is None else own,
        )
        stack.callback(self.node.destroy)
        self.node.start()

    @contextmanager
    def without(self, failing: Callable[[Proxy], object]) -> Iterator[None]:
        """Its ways to the servers fail."""
        with ExitStack() as stack:
            for proxy in self.proxies:
                stack.enter_context(failing(proxy))  # type: ignore[arg-type]
            yield

    def set_clock(self, ahead: int) -> None:
        """Its clock is so many seconds ahead."""
        self._shift.write_text(str(ahead))


class Drill:
    """Machines, and clients that write a history."""

    def __init__(self, pair: Pair, machines: list[Machine], clients: list[Wanderer]) -> None:
        self.pair, self.machines, self.clients = pair, machines, clients
        self.ended = asyncio.Event()
        self.running = [asyncio.create_task(client.run(self.ended)) for client in clients]

    async def wait(self, operations: int = BETWEEN) -> None:
        """Until so many more have been done."""
        wanted = self._done() + operations
        while self._done() < wanted:
            for client in self.running:
                if client.done():
                    client.result()
            await asyncio.sleep(0.01)

    async def end(self) -> list[Operation]:
        """Let the clients end; what they saw."""
        self.ended.set()
        await asyncio.gather(*self.running)
        return [operation for client in self.clients for operation in client.history]

    async def lists(self) -> dict[str, tuple[str, ...]]:
        """What the ledger has now."""
        return {agent: await self.clients[0].doors[0].read(agent) for agent in AGENTS}

    def _done(self) -> int:
        return sum(len(client.history) for client in self.clients)


async def kill_worker(drill: Drill, machine: Machine) -> None:
    await asyncio.to_thread(machine.node.kill, "worker")
    await drill.wait(DURING)
    machine.node.start("worker")


async def kill_gateway(drill: Drill, machine: Machine) -> None:
    await asyncio.to_thread(machine.node.kill, "gateway")
    await drill.wait(DURING)
    machine.node.start("gateway")


async def kill_store(drill: Drill, machine: Machine) -> None:
    await asyncio.to_thread(machine.node.kill, "store")
    await drill.wait(DURING)
    machine.node.start("store")


async def kill_node(drill: Drill, machine: Machine) -> None:
    await asyncio.to_thread(machine.node.kill)
    await drill.wait(DURING)
    machine.node.start()


async def stop_worker(drill: Drill, machine: Machine) -> None:
    """Between the opening of an agent and its commit, as it comes."""
    machine.node.signal(signal.SIGSTOP, "worker")
    await drill.wait(DURING)
    machine.node.signal(signal.SIGCONT, "worker")


async def stop_store(drill: Drill, machine: Machine) -> None:
    machine.node.signal(signal.SIGSTOP, "store")
    await asyncio.sleep(PAUSE)
    machine.node.signal(signal.SIGCONT, "store")


async def cut_off(drill: Drill, machine: Machine) -> None:
    with machine.without(Proxy.cut):
        await drill.wait(DURING)


async def lose_answers(drill: Drill, machine: Machine) -> None:
    with machine.without(Proxy.losing_answers):
        await asyncio.sleep(PAUSE)


async def hold_packets(drill: Drill, machine: Machine) -> None:
    with machine.without(Proxy.holding):
        await asyncio.sleep(PAUSE)


async def set_clocks(drill: Drill, machine: Machine) -> None:
    for ahead in (YEAR, -YEAR, 0):
        machine.set_clock(ahead)
        await drill.wait(DURING)


Fault = Callable[[Drill, Machine], Awaitable[None]]
FAULTS: tuple[Fault, ...] = (
    *(cut_off, kill_worker, stop_worker, lose_answers, kill_store, stop_store),
    *(kill_gateway, hold_packets, set_clocks, kill_node),
)


@pytest.fixture
def pair() -> Iterator[Pair]:
    try:
        with paired() as pair:
            yield pair
    except postgres.NoServer as problem:
        pytest.skip(str(problem))


@pytest.fixture
def clock(tmp_path: Path) -> dict[str, str]:
    """Variables of a machine whose clock the file of the second one moves; none where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if sys.platform != "linux" or compiler is None:
        return {}
    source, library = Path(__file__).parents[1] / "faults" / "clock.c", tmp_path / "clock.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return {"LD_PRELOAD": str(library), "AGENTMEM_CLOCK": str(tmp_path / "shift")}


@asynccontextmanager
async def drilling(pair: Pair, kind: Kinds, clock: dict[str, str]) -> AsyncIterator[Drill]:
    """The last machine's clock is one that can be set."""
    async with AsyncExitStack() as stack:
        processes = stack.enter_context(ExitStack())
        machines = [Machine(name, pair, processes, kind, clock if name == NAMES[-1] else {}) for name in NAMES]
        for machine in machines:
            await machine.node.ready()
        doors = [
            await stack.enter_async_context(Door.to(machine.node, number))
            for machine in machines
            for number in range(len(machine.node.doors))
        ]
        drill = Drill(pair, machines, [Wanderer(str(each), doors, AGENTS, seed=each) for each in range(CLIENTS)])
        try:
            yield drill
        finally:
            await drill.end()


async def test_a_history_of_three_nodes_is_one_of_a_single_ledger(
    pair: Pair, clock: dict[str, str], tmp_path: Path
) -> None:
    """Clients ask any gateway, which finds the agent's node, or any worker, so that hot states are often old."""
    certificates = issue(authority(tmp_path / "tls"), tmp_path / "tls", HOST, 1)
    async with drilling(pair, Kinds(certificates=certificates), clock) as drill:
        for number, fault in enumerate(FAULTS):
            await drill.wait()
            machine = drill.machines[-1 if fault is set_clocks else number % len(NAMES)]
            await fault(drill, machine)
            await machine.node.ready()
        await asyncio.to_thread(pair.fail_over)
        await drill.wait()
        history, lists = await drill.end(), await drill.lists()
    assert violations(history, lists) == []
    assert any(each.outcome is Outcome.OK for each in history if isinstance(each, Append))


async def test_workers_that_trust_that_an_agent_is_theirs_are_found(pair: Pair) -> None:
    """Nothing has to fail for that."""
    async with drilling(pair, Kinds("tests.cluster.mistaken_worker"), {}) as drill:
        await drill.wait(5 * DURING)
        history = await drill.end()
        wrong = violations(history, await drill.lists())
    assert {violation.kind for violation in wrong} & {Kind.LOST, Kind.BLIND}
