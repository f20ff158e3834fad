"""The tasks of a run's agents, turns and listenings: each done once, an agent's in their order.

An agent's n-th task has a key in the log and a request_id that follow from the run, the agent and n. What the log has
is not done again; what was only committed, the worker replays.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from agentmem.errors import Aborted, FailedPrecondition
from agentmem.v1 import inference_pb2, types_pb2, workflow_pb2
from gateway.workflows.definition.schema import Definition
from gateway.workflows.event_log import Event, EventLog
from gateway.workflows.inboxes import Listening
from gateway.workflows.program import Step, Turn
from gateway.workflows.worker import Done, PatientWorker, generate_request, listen_request

MAX_TASKS: Final = 10_000

_Request = inference_pb2.GenerateRequest | inference_pb2.PrefillRequest
_Call = Callable[[], Coroutine[Any, Any, Done]]


class TaskRunner:
    """Event loop only. `slots` bounds the tasks of all runs that the worker has at the same time."""

    def __init__(
        self,
        definition: Definition,
        workflow: workflow_pb2.Workflow,
        worker: PatientWorker,
        events: EventLog,
        slots: asyncio.Semaphore,
    ) -> None:
        self._definition = definition
        self._workflow = workflow
        self._worker = worker
        self._log = events
        self._slots = slots
        self._channels = {phase.name: phase.channel for phase in definition.phases}
        self._keys = {agent.name: agent.key for agent in workflow.agents}
        self._own = {agent.name for agent in workflow.agents if not agent.persists}
        self._done: Counter[str] = Counter()
        self._versions: defaultdict[str, types_pb2.AgentVersion] = defaultdict(types_pb2.AgentVersion)
        self._in_order: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.asked = False
        """The run is no repetition any more."""

    async def speak(self, step: Step, turn: Turn, talking: asyncio.Event) -> str:
        """Return what the agent said. Set `talking` at its first word. Raise AgentmemError."""
        agent = turn.agent

        def publish(event: inference_pb2.GenerateResponse) -> None:
            if event.HasField("started"):
                speaking = workflow_pb2.AgentSpeaking(
                    agent_id=agent, cache=event.started.cache, phase=step.phase, round=step.round
                )
                self._log.publish(Event(agent_speaking=speaking))
            elif event.HasField("delta"):
                talking.set()
                if text := event.delta.text:
                    self._log.publish(Event(agent_delta=workflow_pb2.AgentDelta(agent_id=agent, text=text)))

        def spoke(done: Done) -> Event:
            said = workflow_pb2.AgentSpoke(text=done.text, reason=done.finished.reason, **_done(step, agent, done))
            said.channel = self._channels[step.phase]
            said.listeners.extend(turn.audience.listeners)
            said.bystanders.extend(turn.audience.bystanders)
            return Event(agent_spoke=said)

        async with self._in_order[agent]:
            request = generate_request(self._definition, turn, self._keys[agent], self._next_id(agent))
            call = partial(self._worker.generate, request, publish)
            event = (await self._once(f"spoke/{agent}", agent, request, call, spoke)).agent_spoke
            talking.set()
        await self._log.flush()
        return event.text

    async def listen(self, step: Step, listening: Listening) -> None:
        agent = listening.agent

        def listened(done: Done) -> Event:
            return Event(agent_listened=workflow_pb2.AgentListened(note=done.text, **_done(step, agent, done)))

        async with self._in_order[agent]:
            request_id = self._next_id(agent)
            call: _Call
            request: _Request
            if listening.notes:
                request = generate_request(self._definition, listening, self._keys[agent], request_id)
                call = partial(self._worker.generate, request)
            else:
                request = listen_request(self._definition, listening, self._keys[agent], request_id)
                call = partial(self._worker.prefill, request)
            try:
                await self._once(f"listened/{agent}", agent, request, call, listened)
            except Aborted:
                if listening.role == "system" and agent not in self._own:
                    return  # it has a memory, so it knows who it is
                raise
        await self._log.flush()

    async def _once(
        self, kind: str, agent: str, request: _Request, call: _Call, event: Callable[[Done], Event]
    ) -> Event:
        """Take the event of a task from the log, or else do the task."""
        key = f"{kind}/{self._done[agent]}"
        logged = self._log.find(key)
        if logged is not None:
            made = logged.event
        else:
            self.asked = True
            if agent in self._own:  # an expired agent of the run must not begin again from nothing
                version = self._versions[agent]
                request.if_version, request.if_revision = version.version, version.revision
            async with self._slots:
                made = event(await self._done_once(agent, request, call))
            self._workflow.update_time.GetCurrentTime()
            self._log.append(key, made)
        durable = made.agent_spoke if made.HasField("agent_spoke") else made.agent_listened
        if logged is None:
            self._workflow.turns = durable.totals.turns
            self._workflow.totals.CopyFrom(durable.totals)
        self._versions[agent] = durable.version
        return made

    async def _done_once(self, agent: str, request: _Request, call: _Call) -> Done:
        """Others may commit meanwhile: who had the run before, so that the second call is answered with that, or others
        who speak to an agent that persists, so that it is done after theirs.
        """
        try:
            return await call()
        except Aborted:
            if agent not in self._own and request.HasField("if_version"):  # an introduction, of one that has a memory
                raise
        return await call()

    def _next_id(self, agent: str) -> str:
        self._done[agent] += 1
        if self._done.total() > MAX_TASKS:
            raise FailedPrecondition(
                f"a run has at most {MAX_TASKS} turns, listenings and notes; have fewer rounds or agents, or let "
                "listeners be silent, and begin another run"
            )
        return f"{self._workflow.workflow_id}/{agent}/{self._done[agent]}"


def _done(step: Step, agent: str, done: Done) -> dict[str, Any]:
    finished = done.finished
    return {
        "agent_id": agent,
        "cache": done.started.cache,
        "usage": finished.usage,
        "timings": finished.timings,
        "version": finished.version,
        "phase": step.phase,
        "round": step.round,
        "step": step.number,
        "replayed": finished.replayed,
    }
