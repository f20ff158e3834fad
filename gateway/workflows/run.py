"""A run: its program, executed, recorded and told.

A run is resumed by executing it again: `works` says what is not done again then.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable
from typing import Final, cast

from agentmem.errors import AgentmemError, Unavailable
from agentmem.logs import event
from agentmem.v1 import types_pb2, workflow_pb2, workflow_run_pb2
from gateway.workflows.definition.schema import Definition
from gateway.workflows.log import Event, EventLog, Write
from gateway.workflows.program import Program, Step
from gateway.workflows.telling import heard, outcome, phase_started
from gateway.workflows.turns import Turns
from gateway.workflows.works import Works

log = logging.getLogger(__name__)

State = workflow_pb2.WorkflowState
ENDED: Final = frozenset({State.WORKFLOW_STATE_SUCCEEDED, State.WORKFLOW_STATE_CANCELLED})
"""States that a run does not leave."""


class Run:
    """One run that goes on here. Event loop only; `execute` once.

    `check` raises where whoever began the run may not go on; it is asked before each step. `write` makes a record
    durable. `room` is as in Works.
    """

    def __init__(
        self,
        record: workflow_run_pb2.WorkflowRun,
        definition: Definition,
        turns: Turns,
        write: Write,
        check: Callable[[], None],
        room: asyncio.Semaphore,
    ) -> None:
        self.log = EventLog(record, write)
        self.record = record
        self.cancelled = False
        self.over = False
        """It has ended, and its record says so."""
        self._definition = definition
        self._turns = turns
        self._check = check
        self._phases = {phase.name: phase for phase in definition.phases}
        self._keys = {agent.name: agent.key for agent in record.workflow.agents}
        self._works = Works(definition, record.workflow, turns, self.log, room)
        self._ahead: asyncio.Task[None] | None = None

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
        except AgentmemError as error:
            self.log.close(error)
            raise
        finally:
            self.log.close(None if self.over else interrupted())

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
        if workflow.state in ENDED:
            self.log.add("finished", _finished(workflow))
            await self.log.flush()
            self.over = True
            await self._turns.forget([agent.key for agent in workflow.agents if not agent.persists])
        else:
            workflow.turns = self.log.written("agent_spoke")
            try:
                await self.log.save()
            except AgentmemError as error:
                log.warning("how a workflow failed is not in its record: %s", error)
            self.log.tell(_finished(workflow))
            self.over = True
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
                    self._look_ahead(step, program.upcoming(step.place), group, talking)
                    await self.log.flush()
                    said = {agent: await work for agent, work in works.items()}
                    self._tell_who_heard(step)
        except BaseExceptionGroup as errors:
            raise _first(errors) from errors
        await self.log.flush()

    def _begin(self, step: Step) -> None:
        if step.ended is not None and step.ended.outcome:
            self.log.add(f"outcome/{step.ended.phase}", outcome(step.ended))
        if step.turns:
            self.workflow.phase = step.phase
            self.log.add(f"phase/{step.phase}/{step.round}", phase_started(self._phases[step.phase], step.round))

    def _works_of(self, step: Step, group: asyncio.TaskGroup, talking: asyncio.Event) -> "dict[str, asyncio.Task[str]]":
        """Begin what is to be done. The turns, by agent, are what the next step waits for; they set `talking`.

        Tasks take an agent's lock in the order in which they are made.
        """
        for listening in step.listenings:
            group.create_task(self._works.listen(step, listening))
        return {turn.agent: group.create_task(self._works.speak(step, turn, talking)) for turn in step.turns}

    def _look_ahead(
        self, step: Step, upcoming: dict[str, int | None], group: asyncio.TaskGroup, talking: asyncio.Event
    ) -> None:
        """Look from here, and no longer from the step before."""
        if self._ahead is not None:
            self._ahead.cancel()
        busy = {listening.agent for listening in step.listenings} | {turn.agent for turn in step.turns}
        soon = [name for name, after in upcoming.items() if after == 1 and name not in busy]
        self._ahead = group.create_task(self._looking(upcoming, soon, talking if step.turns else None))

    async def _looking(self, upcoming: dict[str, int | None], soon: list[str], talking: asyncio.Event | None) -> None:
        """Say whose turn is far, and have those who speak next where they are fast. Best effort.

        The latter begins when somebody talks: before that it would be in the way of whose turn it is. A run that only
        repeats what its log has needs none of it.
        """
        if not self._works.anew:
            return
        await self._turns.hint(upcoming, self._keys)
        if talking is not None:
            await talking.wait()
        for name in soon:
            await self._turns.prefetch(self._keys[name])

    def _tell_who_heard(self, step: Step) -> None:
        for turn in step.turns:
            told = heard(turn, self._phases[step.phase].channel)
            self.log.add(f"heard/{turn.agent}/{self._works.last(turn.agent)}", told)


def interrupted() -> Unavailable:
    """What those are told who follow a run that stops and has not ended."""
    return Unavailable("the run was interrupted; send the request again, and it goes on")


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


def _finished(workflow: workflow_pb2.Workflow) -> Event:
    return Event(finished=workflow_pb2.WorkflowFinished(workflow=workflow))


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """What failed first; the others were cancelled for it, or failed in the same moment."""
    each = errors.exceptions[0]
    return _first(each) if isinstance(each, BaseExceptionGroup) else each
