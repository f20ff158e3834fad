"""A run: its program, executed and recorded. It is resumed by executing it again over its log."""

import asyncio
import hashlib
import json
import logging
import uuid
from collections.abc import Callable, Sequence
from typing import cast

from agentmem.errors import AgentmemError, FailedPrecondition, NotFound
from agentmem.process.logs import event
from agentmem.v1 import types_pb2, workflow_pb2
from agentmem.validation import AgentKey
from gateway.workflows.definition.schema import Definition
from gateway.workflows.event_log import Event, EventLog, Write
from gateway.workflows.program import PhaseEnd, Program, Step
from gateway.workflows.records import ENDED, RunKey, State, StoredRun, TakenOver, finished, interrupted
from gateway.workflows.task_runner import TaskRunner
from gateway.workflows.worker import PatientWorker

log = logging.getLogger(__name__)


class Run:
    """Event loop only; `execute` once.

    `check` raises where the caller may not go on, before each step. `write` makes events durable.
    """

    def __init__(
        self,
        stored: StoredRun,
        definition: Definition,
        worker: PatientWorker,
        write: Write,
        check: Callable[[], None],
        slots: asyncio.Semaphore,
    ) -> None:
        self.stored = stored
        self.workflow = stored.workflow
        self.log = EventLog(stored.events, len(stored.payload()), write)
        self.cancelled = False
        self.over = False
        """It has ended, and its record says so."""
        self.task: asyncio.Task[None]
        self._definition = definition
        self._worker = worker
        self._check = check
        self._phases = {phase.name: phase for phase in definition.phases}
        self._keys = {agent.name: agent.key for agent in self.workflow.agents}
        self._tasks = TaskRunner(definition, self.workflow, worker, self.log, slots)
        self._ahead: asyncio.Task[None] | None = None

    def lose(self) -> None:
        if self.workflow.state == State.WORKFLOW_STATE_RUNNING:
            self.task.cancel()

    async def execute(self) -> None:
        """Cancelled, leave the record to be resumed, unless `cancelled`. Raises what `write` raises."""
        try:
            await self._execute()
        except AgentmemError as error:
            self.log.close(error)
            raise
        finally:
            self.log.close(None if self.over else interrupted())

    async def _execute(self) -> None:
        workflow = self.workflow
        self.log.append("started", Event(started=workflow_pb2.WorkflowStarted(workflow=workflow)))
        try:
            await self._perform()
            workflow.state, workflow.error = State.WORKFLOW_STATE_SUCCEEDED, ""
        except asyncio.CancelledError:
            if not self.cancelled:
                raise
            cast("asyncio.Task[None]", asyncio.current_task()).uncancel()
            workflow.state, workflow.error = State.WORKFLOW_STATE_CANCELLED, ""
        except TakenOver:
            raise
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
            self.log.append("finished", finished(workflow))
            await self.log.flush()
            self.over = True
            await self._worker.forget([agent.key for agent in workflow.agents if not agent.persists])
        else:
            workflow.totals.CopyFrom(self.log.stored_totals())
            workflow.turns = workflow.totals.turns
            try:
                await self.log.save()
            except TakenOver:
                raise
            except AgentmemError as error:
                log.warning("how a workflow failed is not in its record: %s", error)
            self.log.publish(finished(workflow))
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
                    turns = self._start(step, group, talking)
                    self._look_ahead(step, program.upcoming(step.place), group, talking)
                    await self.log.flush()
                    said = {agent: await turn for agent, turn in turns.items()}
        except BaseExceptionGroup as errors:
            raise _first(errors) from errors
        await self.log.flush()

    def _begin(self, step: Step) -> None:
        if step.ended is not None and step.ended.outcome:
            self.log.append(f"outcome/{step.ended.phase}", _outcome(step.ended))
        if step.turns:
            self.workflow.phase = step.phase
            phase = self._phases[step.phase]
            started = workflow_pb2.PhaseStarted(
                phase=phase.name,
                round=step.round,
                topology=phase.topology,
                channel=phase.channel,
                agents=[*phase.agents, *phase.listeners],
            )
            self.log.append(f"phase/{step.phase}/{step.round}", Event(phase_started=started))

    def _start(self, step: Step, group: asyncio.TaskGroup, talking: asyncio.Event) -> "dict[str, asyncio.Task[str]]":
        """Return the turns, by agent; they set `talking`. Tasks take an agent's lock in their order."""
        for listening in step.listenings:
            group.create_task(self._tasks.listen(step, listening))
        return {turn.agent: group.create_task(self._tasks.speak(step, turn, talking)) for turn in step.turns}

    def _look_ahead(
        self, step: Step, upcoming: dict[str, int | None], group: asyncio.TaskGroup, talking: asyncio.Event
    ) -> None:
        if self._ahead is not None:
            self._ahead.cancel()
        busy = {listening.agent for listening in step.listenings} | {turn.agent for turn in step.turns}
        soon = [name for name, after in upcoming.items() if after == 1 and name not in busy]
        self._ahead = group.create_task(self._prefetch(upcoming, soon, talking if step.turns else None))

    async def _prefetch(self, upcoming: dict[str, int | None], soon: list[str], talking: asyncio.Event | None) -> None:
        """Hint whose turn is far, and prefetch those who speak next. Best effort."""
        if not self._tasks.asked:
            return
        await self._worker.hint(upcoming, self._keys)
        if talking is not None:
            await talking.wait()
        for name in soon:
            await self._worker.prefetch(self._keys[name])


def new_workflow(definition: Definition, key: RunKey, models: Sequence[str]) -> workflow_pb2.Workflow:
    """`models` are the registered ones, the default first. Raises AgentmemError."""
    agents = agent_keys(definition, *key, models[0] if models else "")
    check_memories(agents, models)
    workflow = workflow_pb2.Workflow(
        namespace=key[0],
        workflow_id=key[1],
        name=definition.workflow,
        state=State.WORKFLOW_STATE_RUNNING,
        agents=agents,
    )
    workflow.create_time.GetCurrentTime()
    return workflow


def workflow_id_of(namespace: str, request_id: str) -> str:
    """Another namespace's is another run."""
    digest = hashlib.sha256(f"{namespace}\0{request_id}".encode()).hexdigest()
    return f"wf-{digest[:20]}"


def check_memories(agents: Sequence[workflow_pb2.WorkflowAgent], models: Sequence[str]) -> None:
    """Raise AgentmemError for unknown models, wrong names, and two agents with one memory."""
    owners: dict[AgentKey, str] = {}
    for agent in agents:
        key = AgentKey.from_proto(agent.key)
        if key.model_id not in models:
            raise NotFound("model", key.model_id, f"registered are {', '.join(models) or 'none'}")
        if (other := owners.setdefault(key, agent.name)) != agent.name:
            raise FailedPrecondition(
                f"{other} and {agent.name} would have one memory, {key.agent_id!r} on {key.model_id}; "
                "give one of them another id"
            )


def agent_keys(
    definition: Definition, namespace: str, workflow_id: str, default_model: str
) -> list[workflow_pb2.WorkflowAgent]:
    """Return the memories of a run's agents. One that does not persist has a memory of its own."""
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


def _outcome(ended: PhaseEnd) -> Event:
    outcome = workflow_pb2.PhaseOutcome(
        phase=ended.phase,
        outcome_json=json.dumps(ended.outcome, ensure_ascii=False, allow_nan=False),
        rounds=ended.rounds,
    )
    return Event(phase_outcome=outcome)


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return what failed first; the others were cancelled for it."""
    each = errors.exceptions[0]
    return _first(each) if isinstance(each, BaseExceptionGroup) else each
