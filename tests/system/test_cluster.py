"""Machines that share a ledger: real stores, workers and gateways on one PostgreSQL, node doors over mTLS."""

from __future__ import annotations

import asyncio
import itertools
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from safetensors.numpy import load_file

from agentmem import errors
from agentmem.channels import connect
from agentmem.v1 import cluster_pb2, cluster_pb2_grpc, types_pb2
from gateway.cluster.cli.certificates import authority, issue
from tests import postgres
from tests.oracle import Oracle
from tests.system.client import Client, Turn, append
from tests.system.cluster_dashboard import recording
from tests.system.recomputed import ARGUMENTS, LONG, check
from tests.system.stack import Stack, free_port

HOST = "127.0.0.1"
TAKEOVER_SECONDS = 15.0
_KNOWN = "agentmem_gateway_cluster_nodes"
_databases = itertools.count()


@dataclass
class Machine:
    name: str
    stack: Stack

    async def gateway(self) -> Client:
        return await self.stack.client("gateway")


@dataclass
class Cluster:
    machines: dict[str, Machine]
    directory: Path
    conninfo: str
    """Where its ledger is, for libpq."""

    async def holder(self, agent: str) -> str:
        for machine in self.machines.values():
            if "store" in machine.stack.processes:
                async with connect(f"unix:{machine.stack.run}/store.sock") as channel:
                    key = types_pb2.AgentKey(namespace="default", agent_id=agent, model_id=machine.stack.model)
                    stub = cluster_pb2_grpc.ClusterServiceStub(channel)
                    return (await stub.LocateAgent(cluster_pb2.LocateAgentRequest(key=key), timeout=10)).last_on
        raise AssertionError("no node is up")

    def other(self, name: str) -> Machine:
        return next(machine for each, machine in self.machines.items() if each != name)

    async def check(self, turn: Turn, on: Machine, agent: str) -> None:
        """The log-probabilities are those of a recomputation of the whole ledger."""
        [calibration] = (on.stack.data / "worker" / "calibration").iterdir()
        assert len(set(turn.token_ids)) > 3
        await check(on.stack, Oracle(self.directory, calibration=load_file(calibration)), turn, agent)


@asynccontextmanager
async def cluster(
    directory: Path,
    model: Path,
    server: postgres.Server,
    *names: str,
    gateway_flags: tuple[str, ...] = (),
    pool_bytes: int = 1 << 24,
) -> AsyncIterator[Cluster]:
    """Nodes of these names, all ready and known to each other, that serve a model as "demo"."""
    certificates = issue(authority(directory / "tls"), directory / "tls", HOST, 30)
    database = f"cluster_{directory.name.replace('-', '_')}_{next(_databases)}".lower()
    with server.connect() as connection:
        connection.execute(f'CREATE DATABASE "{database}"'.encode())
    conninfo = server.conninfo.replace("dbname=postgres", f"dbname={database}")
    machines = dict[str, Machine]()
    async with AsyncExitStack() as stacks:
        for name in names:
            node = ("--node", name, "--advertise", f"{HOST}:{free_port()}", "--cluster-tls", str(certificates))
            stack = Stack(
                f"demo={model}",
                worker_flags=("--pool-bytes", str(pool_bytes)),
                store_flags=(f"--cluster={conninfo}", "--cluster-survives", "nothing", *node),
                gateway_flags=(*node, *gateway_flags),
            )
            stacks.push_async_callback(stack.destroy)
            machines[name] = Machine(name, stack)
        for machine in machines.values():
            machine.stack.start("store", "worker", "gateway")
        for machine in machines.values():
            await machine.stack.ready()
        async with asyncio.timeout(60):
            for machine in machines.values():
                while await machine.stack.metric("gateway", _KNOWN, state="ready") < len(names):
                    await asyncio.sleep(0.1)
        try:
            yield Cluster(machines, model, conninfo)
        except BaseException:
            for machine in machines.values():
                for log in ("store", "gateway", "worker"):
                    sys.stderr.write(f"--- {machine.name} {log}\n{machine.stack.logs(log)[-3000:]}\n")
            raise
    with server.connect() as connection:
        connection.execute(f'DROP DATABASE "{database}" WITH (FORCE)'.encode())


async def until_said(client: Client, agent: str, text: str) -> Turn:
    """A turn, again and again until it is answered, under one request_id: as a client that retries."""
    request_id = f"{agent}-{text[:20]}"
    while True:
        try:
            return await client.say(agent, text, request_id=request_id, **ARGUMENTS)
        except grpc.aio.AioRpcError as error:
            if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED):
                raise
            await asyncio.sleep(0.2)


@pytest.mark.essential("a commit on two nodes of a cluster")
async def test_an_agent_stays_on_its_node_and_moves_when_that_dies(two: Cluster) -> None:
    """Through either gateway it is hot on the same node; killed with -9, it speaks on the other one within seconds."""
    a, b = [await machine.gateway() for machine in two.machines.values()]
    first = await until_said(a, "ada", LONG)
    home = await two.holder("ada")
    second = await until_said(b, "ada", "And the sail?")
    assert await two.holder("ada") == home
    assert second.cached.get("hot", 0) > 400, second.cached
    await two.check(second, two.machines[home], "ada")

    two.machines[home].stack.kill("store", "worker", "gateway")
    left = two.other(home)
    client = await left.gateway()
    began = time.monotonic()
    third = await until_said(client, "ada", "And the mast?")
    assert time.monotonic() - began < TAKEOVER_SECONDS
    assert await two.holder("ada") == left.name
    assert first.token_ids and third.started.cache.prompt_tokens > second.started.cache.prompt_tokens
    await two.check(third, left, "ada")


@pytest.mark.slow
async def test_a_turn_on_another_node_takes_the_blocks_of_the_one_before(
    two: Cluster, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    stacks = {name: machine.stack for name, machine in two.machines.items()}
    async with recording(stacks, tmp_path / "prometheus") as recorded:
        client = await two.machines["a"].gateway()
        await until_said(client, "eve", LONG)
        home = await two.holder("eve")
        await two.machines[home].stack.on_disk("eve")
        away = two.other(home)
        worker = await away.stack.client()
        turn = await until_said(worker, "eve", "And the sail?")
        assert turn.cached.get("remote", 0) >= 256, turn.cached
        assert await away.stack.metric("store", "agentmem_peer_fetches_total", result="warm") > 0
        await two.check(turn, away, "eve")
        assert await two.holder("eve") == away.name
        with subtests.test("the cluster's dashboard shows it"):
            await recorded.show()


@pytest.mark.slow
async def test_a_deletion_takes_files_and_memory_of_all_nodes(two: Cluster) -> None:
    client = await two.machines["a"].gateway()
    await until_said(client, "sue", LONG)
    home = await two.holder("sue")
    away = two.other(home)
    await two.machines[home].stack.on_disk("sue")
    await until_said(await away.stack.client(), "sue", "And the sail?")
    await away.stack.on_disk("sue")
    for machine in two.machines.values():
        assert machine.stack.block_files()
        assert await machine.stack.metric("worker", "agentmem_cache_agents", tier="hot") == 1, machine.name
    await client.delete("sue")
    for machine in two.machines.values():
        assert not machine.stack.block_files(), machine.name
        assert await machine.stack.metric("worker", "agentmem_cache_agents", tier="hot") == 0, machine.name


async def begun(two: Cluster) -> tuple[Machine, Machine, Client]:
    """The node that has ada, the other one, and a client of its gateway."""
    await (await two.machines["a"].gateway()).say("ada", "The colour of the boat is green.", max_tokens=2)
    home = two.machines[await two.holder("ada")]
    other = two.other(home.name)
    return home, other, await other.gateway()


async def turns(machine: Machine) -> float:
    return await machine.stack.metric("worker", "agentmem_e2e_request_latency_seconds_count")


@pytest.mark.slow
async def test_a_gateway_that_hangs_is_passed_over(two: Cluster) -> None:
    home, other, client = await begun(two)
    await client.say("ada", "And the oars?", max_tokens=2)  # over a connection that stays
    assert await turns(home) == 2
    hung = home.stack.processes["gateway"]
    hung.send_signal(signal.SIGSTOP)
    try:
        turn = await client.say("ada", "And the sail?", max_tokens=2)
    finally:
        hung.send_signal(signal.SIGCONT)
    assert turn.finished.version.version == 3
    assert await turns(other) == 1


@pytest.mark.slow
async def test_a_node_that_slept_goes_on_from_what_was_said_elsewhere(two: Cluster) -> None:
    """All of its processes are stopped for longer than its lease; nothing that it remembers from before is used."""
    home, other, client = await begun(two)
    services = list(home.stack.processes.values())
    for process in services:
        process.send_signal(signal.SIGSTOP)
    try:
        second = await until_said(client, "ada", "And the sail?")
        await two.check(second, other, "ada")
        await asyncio.sleep(TAKEOVER_SECONDS)
    finally:
        for process in services:
            process.send_signal(signal.SIGCONT)
    third = await until_said(await home.gateway(), "ada", "And the mast?")
    assert [turn.finished.version.version for turn in (second, third)] == [2, 3]
    assert all(process.poll() is None for process in services)
    await two.check(third, two.machines[await two.holder("ada")], "ada")


@pytest.mark.slow
async def test_a_node_that_leaves_costs_no_turn(two: Cluster) -> None:
    home, other, client = await begun(two)

    async def speak() -> list[int]:
        return [(await client.say("ada", "And?", max_tokens=2)).finished.version.version for _ in range(6)]

    speaking = asyncio.create_task(speak())
    await asyncio.to_thread(home.stack.kill, "gateway", number=signal.SIGTERM)
    assert await speaking == [2, 3, 4, 5, 6, 7]
    await client.say("ada", "And now?", max_tokens=2)
    assert await turns(other) > 0


@pytest.mark.slow
async def test_a_turn_in_which_its_node_died_runs_elsewhere_when_it_is_sent_again(two: Cluster) -> None:
    home, other, client = await begun(two)
    turn = {
        "append": append("Tell me more."),
        "max_tokens": 400,
        "request_id": "r1",
        "sampling": types_pb2.Sampling(ignore_eos=True),
    }
    events = aiter(client.inference.Generate(client.request("ada", **turn)))
    assert (await anext(events)).HasField("started")
    home.stack.kill("gateway", "worker", "store")
    with pytest.raises(grpc.aio.AioRpcError) as broken:
        async for _ in events:
            pass
    failure = errors.from_rpc(broken.value)
    assert isinstance(failure, errors.Unavailable)
    assert failure.retry_after > 0
    again = await client.turn("ada", **turn, top_logprobs=0)
    assert (again.finished.version.version, again.finished.replayed, again.finished.durable) == (2, False, True)
    await two.check(again, other, "ada")
    replay = await client.turn("ada", **turn, top_logprobs=0)
    assert (replay.finished.replayed, replay.text) == (True, again.text)
