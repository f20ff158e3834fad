"""A gateway that SIGTERM meets in the middle of a takeover: real processes, a database that holds the write back."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import psycopg
import pytest

from agentmem.channels import connect
from agentmem.v1 import inference_pb2, inference_pb2_grpc, types_pb2, workflow_pb2, workflow_pb2_grpc
from benchmarks.cluster.clusters import MODEL, cluster
from tests import postgres
from tests.cluster.nodes import Node

ROUNDS = 2
FILE = f"""
workflow: talk
agents: {{ada: {{persist: true}}, bob: {{persist: true}}}}
phases: [{{name: only, agents: [ada, bob], rounds: {ROUNDS}, prompts: speak}}]
"""
TURN_SECONDS = 1.0
"""Long enough that a gateway can be killed while its run writes nothing."""
OTHER = "eve"
"""An agent whose turn keeps the gateway from ending."""


class Database:
    """The ledger's, as an operator sees it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._connection = psycopg.connect(url, autocommit=True)

    def close(self) -> None:
        self._connection.close()

    def owner(self) -> tuple[Any, ...] | None:
        """The node that has the run, and its epoch."""
        return self._connection.execute("SELECT owner_node, owner_epoch FROM agentmem.workflow_records").fetchone()

    @property
    def waiting(self) -> int:
        """How many writers wait for a row."""
        asked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        [count] = self._connection.execute(asked).fetchone() or (0,)
        return int(count)

    @contextmanager
    def held(self, rows: str) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        """Nobody changes these rows during the block, or until the connection rolls back; they can be read."""
        with psycopg.connect(self.url) as other:
            assert other.execute(f"SELECT 1 FROM agentmem.{rows} FOR UPDATE".encode()).fetchall(), rows
            yield other
            other.rollback()


@pytest.fixture
def served() -> Iterator[Database]:
    try:
        with postgres.serving(postgres.DURABLE) as server:
            found = Database(server.conninfo)
            yield found
            found.close()
    except postgres.NoServer as problem:
        pytest.skip(str(problem))


def workflows(channel: grpc.aio.Channel) -> Any:
    return workflow_pb2_grpc.WorkflowServiceStub(channel)


def a_turn(channel: grpc.aio.Channel, request_id: str) -> Any:
    key = types_pb2.AgentKey(agent_id=OTHER, model_id=MODEL)
    request = inference_pb2.GenerateRequest(key=key, request_id=request_id, append=types_pb2.Append(text="speak"))
    return inference_pb2_grpc.InferenceServiceStub(channel).Generate(request)


async def until(holds: Any) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.01)


async def begun(channel: grpc.aio.Channel) -> str:
    """A run in its first turn, for which nothing is written; its name."""
    call, workflow_id = workflows(channel).RunWorkflow(workflow_pb2.RunWorkflowRequest(definition_yaml=FILE)), ""
    async for event in call:
        if event.HasField("started"):
            workflow_id = event.started.workflow.workflow_id
        elif event.HasField("agent_speaking"):
            return workflow_id
    raise AssertionError("the run has ended")


async def ended(channel: grpc.aio.Channel, workflow_id: str) -> workflow_pb2.Workflow:
    """A run that somebody goes on with, at its end. It is only looked at, so that nobody is asked to go on."""
    named = workflow_pb2.GetWorkflowRequest(workflow_id=workflow_id)
    going_on = (
        workflow_pb2.WorkflowState.WORKFLOW_STATE_RUNNING,
        workflow_pb2.WorkflowState.WORKFLOW_STATE_INTERRUPTED,
    )
    async with asyncio.timeout(60):
        while (run := (await workflows(channel).GetWorkflow(named)).workflow).state in going_on:
            await asyncio.sleep(0.1)
    return run


@pytest.mark.slow
async def test_a_gateway_that_sigterm_meets_in_a_takeover_leaves_the_run_at_once(served: Database) -> None:
    """Its write of the run's record waits in the database; when that is done, nobody has the run, and another goes on.

    Its store stays, so that its node does not go: without that word the run would be taken for its own.
    """
    flags, environment = (f"--seconds={TURN_SECONDS}",), {"AGENTMEM_GATEWAY_GRACE": "60"}
    async with cluster(served.url, 2, flags, made=Node, environments=[environment] * 2) as made:
        (_, a), (name, b) = made.nodes.items()
        async with connect(b.doors[1]) as at_b:
            assert [event async for event in a_turn(at_b, "eve-1")][-1].finished.durable
            async with connect(a.doors[1]) as at_a:
                workflow_id = await begun(at_a)
                a.kill("gateway")
            with served.held(f"agents WHERE agent_id = '{OTHER}'") as turn, served.held("workflow_records") as takeover:
                await until(lambda: served.waiting >= 1)  # a write that is repeated waits twice
                speaking = a_turn(at_b, "eve-2")
                async for event in speaking:
                    if event.HasField("delta"):
                        break
                b.signal(signal.SIGTERM, "gateway")
                log = b.root / "gateway.log"
                await until(lambda: "draining" in log.read_text(errors="replace"))
                takeover.rollback()
                await until(lambda: served.owner() == (name, 0))
                turn.rollback()
                assert [event async for event in speaking][-1].finished.durable
            assert await asyncio.to_thread(b.processes.pop("gateway").wait, 60) == 0
        a.start("gateway")
        await a.ready()
        async with connect(a.doors[1]) as at_a:
            run = await ended(at_a, workflow_id)
        assert (run.state, run.turns) == (workflow_pb2.WorkflowState.WORKFLOW_STATE_SUCCEEDED, 2 * ROUNDS)
        said = await made.lists(("ada", "bob"), a)
    for agent, turns in said.items():
        assert list(turns) == [f"{workflow_id}/{agent}/{number}" for number in range(1, len(turns) + 1)]
        assert len(turns) >= ROUNDS
