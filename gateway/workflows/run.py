"""A run: its program, executed, recorded and told.

A run is resumed by executing it again. What the record has is not done again; what was committed on the worker and is
not in the record is replayed, since the request_id of an agent's n-th work follows from the run's id; the rest is
computed.
"""

import asyncio
import logging
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, cast

from agentmem.errors import Aborted, AgentmemError, Unavailable
from agentmem.logs import event
from agentmem.v1 import inference_pb2, types_pb2, workflow_pb2, workflow_run_pb2
from gateway.workflows.definition.schema import Definition
from gateway.workflows.hearing import Listening
from gateway.workflows.log import Event, EventLog
from gateway.workflows.program import PhaseEnd, Program, Step, Turn
from gateway.workflows.requests import listen_request, note_request, speak_request
from gateway.workflows.telling import heard, listened, outcome, phase_started, speaking, spoke
from gateway.workflows.turns import Done, Teller, Turns

log = logging.getLogger(__name__)

State = workflow_pb2.WorkflowState
ENDED: Final = frozenset({State.WORKFLOW_STATE_SUCCEEDED, State.WORKFLOW_STATE_CANCELLED})
"""States that a run does not leave."""
_AT_ONCE: Final = 32
"""Turns and listenings of one run that the worker has at the same time."""


class Run:
    """One run that goes on here. Event loop only; `execute` once.

    `check` raises where whoever began the run may not go on; `write` makes the record durable.
    """

    def __init__(
        self,
        record: workflow_run_pb2.WorkflowRun,
        definition: Definition,
        turns: Turns,
        write: Callable[[], Coroutine[Any, Any, None]],
        check: Callable[[], None],
    ) -> None:
        self.record = record
        self.log = EventLog(record, write)
        self.cancelled = False
        self._definition = definition
        self._turns = turns
        self._check = check
        self._write = write
        self._phases = {phase.name: phase for phase in definition.phases}
        self._keys = {agent.name: agent.key for agent in record.workflow.agents}
        self._works: Counter[str] = Counter()
        self._in_order: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._room = asyncio.Semaphore(_AT_ONCE)

    @property
    def workflow(self) -> workflow_pb2.Workflow:
        """How far it is."""
        return self.record.workflow

    async def execute(self) -> None:
        """Go on to the end. Cancelled, it leaves the record as it is, for whoever resumes it, unless `cancelled`.

        Raises what writing the record raises; the run is then as the record has it.
        """
        try:
            await self._to_its_end()
        except BaseException:
            self.log.close(Unavailable("the run was interrupted; send the request again, and it goes on"))
            raise
        self.log.close()

    async def _to_its_end(self) -> None:
        workflow = self.workflow
        self.log.add("started", Event(started=workflow_pb2.WorkflowStarted(workflow=workflow)))
        try:
            await self._perform()
            workflow.state, workflow.error = State.WORKFLOW_STATE_SUCCEEDED, ""
        except asyncio.CancelledError:
            if not self.cancelled:
                raise
            cast("asyncio.Task[None]", asyncio.current_task()).uncancel()
            workflow.state, workflow.error = State.WORKFLOW_STATE_CANCELLED, ""
        except AgentmemError as error:
            workflow.state, workflow.error = State.WORKFLOW_STATE_FAILED, error.message
        except Exception:  # a run has no caller who would map it
            incident = uuid.uuid4().hex[:12]
            log.exception("unexpected error in a workflow, incident %s", incident)
            workflow.state = State.WORKFLOW_STATE_FAILED
            workflow.error = f"internal error; the server's log has it as incident {incident}"
        await self._finish()

    async def _finish(self) -> None:
        workflow = self.workflow
        finished = Event(finished=workflow_pb2.WorkflowFinished(workflow=workflow))
        if workflow.state in ENDED:
            self.log.add("finished", finished)
            await self.log.flush()
            await self._turns.forget([agent.key for agent in workflow.agents if not agent.persists])
        else:
            await self._write()
            await self.log.flush()
            self.log.tell(finished)
        event(log, "workflow ended", workflow_id=workflow.workflow_id, state=State.Name(workflow.state))

    async def _perform(self) -> None:
        program = Program(self._definition)
        said: dict[str, str] = {}
        try:
            async with asyncio.TaskGroup() as group:
                while (step := program.advance(said)) is not None:
                    self._check()
                    self._begin(step)
                    talking = asyncio.Event()
                    works = self._works_of(step, group, talking)
                    group.create_task(self._look_ahead(step, program, talking))
                    await self.log.flush()
                    said = {agent: await work for agent, work in works.items()}
                    self._tell_who_heard(step)
        except BaseExceptionGroup as errors:
            raise _first(errors) from errors
        await self.log.flush()

    def _begin(self, step: Step) -> None:
        if step.ended is not None:
            self._end_phase(step.ended)
        if step.turns:
            self.workflow.phase = step.phase
            self.log.add(f"phase/{step.phase}/{step.round}", phase_started(self._phases[step.phase], step.round))

    def _end_phase(self, ended: PhaseEnd) -> None:
        if ended.outcome:
            self.log.add(f"outcome/{ended.phase}", outcome(ended))

    def _works_of(self, step: Step, group: asyncio.TaskGroup, talking: asyncio.Event) -> "dict[str, asyncio.Task[str]]":
        """Begin what is to be done. The turns, by agent, are what the next step waits for; they set `talking`."""
        for listening in step.listenings:
            group.create_task(self._in_turn(listening.agent, partial(self._listen, step, listening)))
        return {
            turn.agent: group.create_task(self._in_turn(turn.agent, partial(self._speak, step, turn, talking)))
            for turn in step.turns
        }

    async def _in_turn(self, agent: str, work: Callable[[int], Coroutine[Any, Any, str]]) -> str:
        """One work of an agent after the other; locks are taken in the order in which tasks were made."""
        async with self._in_order[agent]:
            self._works[agent] += 1
            number = self._works[agent]
            async with self._room:
                return await work(number)

    async def _speak(self, step: Step, turn: Turn, talking: asyncio.Event, number: int) -> str:
        key = f"spoke/{turn.agent}/{number}"
        if (known := self.log.find(key)) is not None:
            talking.set()
            return known.agent_spoke.text
        request = speak_request(self._definition, turn, self._keys[turn.agent], self._id(turn.agent, number))
        done = await self._turns.speak(request, _Telling(self.log, step, turn.agent, talking))
        talking.set()
        self._committed(key, spoke(step, turn.agent, done))
        self.workflow.turns += 1
        await self.log.flush()
        return done.text

    async def _listen(self, step: Step, listening: Listening, number: int) -> str:
        agent = listening.agent
        key = f"listened/{agent}/{number}"
        if self.log.find(key) is None and (done := await self._take_in(listening, number)) is not None:
            self._committed(key, listened(step, agent, done))
            await self.log.flush()
        return ""

    async def _take_in(self, listening: Listening, number: int) -> Done | None:
        """What came of a listening; None where an agent that has a memory was to be introduced."""
        agent, key = listening.agent, self._keys[listening.agent]
        if listening.notes:
            request = note_request(self._definition, listening, key, self._id(agent, number))
            return await self._turns.speak(request, Teller())
        introduced = listening.role == "system"
        try:
            return await self._turns.listen(
                listen_request(self._definition, listening, key, self._id(agent, number), new=introduced)
            )
        except Aborted:
            if introduced and self._definition.agents[agent].persist:
                return None
            raise

    async def _look_ahead(self, step: Step, program: Program, talking: asyncio.Event) -> None:
        """Say whose turn is far, and have those who speak next where they are fast. Best effort.

        The latter begins when somebody talks: before that it would be in the way of whose turn it is.
        """
        upcoming = program.upcoming(step.place)
        await self._turns.hint(upcoming, self._keys)
        if step.turns:
            await talking.wait()
        busy = {listening.agent for listening in step.listenings} | {turn.agent for turn in step.turns}
        soon = [name for name, after in upcoming.items() if after == 1 and name not in busy]
        async with asyncio.TaskGroup() as group:
            for name in soon:
                group.create_task(self._turns.prefetch(self._keys[name]))

    def _tell_who_heard(self, step: Step) -> None:
        for turn in step.turns:
            self.log.add(f"heard/{turn.agent}/{self._works[turn.agent]}", heard(turn, self._phases[step.phase].channel))

    def _committed(self, key: str, told: Event) -> None:
        self.workflow.update_time.GetCurrentTime()
        self.log.add(key, told)

    def _id(self, agent: str, number: int) -> str:
        return f"{self.workflow.workflow_id}/{agent}/{number}"


class _Telling(Teller):
    """A turn, told to those who follow the run."""

    def __init__(self, events: EventLog, step: Step, agent: str, talking: asyncio.Event) -> None:
        self._events = events
        self._step = step
        self._agent = agent
        self._talking = talking

    def started(self, started: inference_pb2.Started) -> None:
        self._events.tell(speaking(self._step, self._agent, started))

    def said(self, text: str) -> None:
        self._talking.set()
        if text:
            self._events.tell(Event(agent_delta=workflow_pb2.AgentDelta(agent_id=self._agent, text=text)))


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """What failed first; the others were cancelled for it, or failed in the same moment."""
    each = errors.exceptions[0]
    return _first(each) if isinstance(each, BaseExceptionGroup) else each


def agent_keys(
    definition: Definition, namespace: str, workflow_id: str, default_model: str
) -> list[workflow_pb2.WorkflowAgent]:
    """The memories of a run's agents. One that does not persist has a memory of this run's own."""
    return [
        workflow_pb2.WorkflowAgent(
            name=name,
            persists=agent.persist,
            key=types_pb2.AgentKey(
                namespace=namespace,
                agent_id=(agent.id or name) if agent.persist else f"{workflow_id}.{name}",
                model_id=agent.model or definition.defaults.model or default_model,
            ),
        )
        for name, agent in definition.agents.items()
    ]
