"""The works of a run's agents, turns and listenings: each done once, an agent's in their order.

An agent's n-th work has a name in the log and a request_id that follow from the run, the agent and n. What the log has
is not done again, if it is the answer to the same request; what was committed and is not in the log, the worker
replays.
"""

import asyncio
import hashlib
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from functools import partial

from agentmem.errors import Aborted, FailedPrecondition
from agentmem.v1 import inference_pb2, workflow_pb2
from gateway.workflows.definition.schema import Definition
from gateway.workflows.hearing import Listening
from gateway.workflows.log import Event, EventLog
from gateway.workflows.program import Step, Turn
from gateway.workflows.requests import listen_request, note_request, speak_request
from gateway.workflows.telling import listened, speaking, spoke
from gateway.workflows.turns import Done, Teller, Turns

_Request = inference_pb2.GenerateRequest | inference_pb2.PrefillRequest


class Works:
    """Event loop only. `room` is how many works the worker has at the same time, of all runs that share it."""

    def __init__(
        self,
        definition: Definition,
        workflow: workflow_pb2.Workflow,
        turns: Turns,
        events: EventLog,
        room: asyncio.Semaphore,
    ) -> None:
        self._definition = definition
        self._workflow = workflow
        self._turns = turns
        self._log = events
        self._room = room
        self._keys = {agent.name: agent.key for agent in workflow.agents}
        self._own = {agent.name for agent in workflow.agents if not agent.persists}
        self._done: Counter[str] = Counter()
        self._versions: Counter[str] = Counter()
        self._in_order: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.anew = False
        """Something was asked for that the log did not have: from here on the run is not a repetition."""

    def last(self, agent: str) -> int:
        """The number of the agent's last work, from 1."""
        return self._done[agent]

    async def speak(self, step: Step, turn: Turn, talking: asyncio.Event) -> str:
        """A turn; what the agent said. Sets `talking` at its first word. Raises AgentmemError."""
        agent = turn.agent
        async with self._in_order[agent]:
            request = speak_request(self._definition, turn, self._keys[agent], self._next_id(agent))
            key = f"spoke/{agent}/{self._done[agent]}"
            known = self._known(key, request)
            if known is not None:
                talking.set()
                self._versions[agent] = known.agent_spoke.version.version
                return known.agent_spoke.text
            telling = _Telling(self._log, step, agent, talking)
            done = await self._ask(agent, request, partial(self._turns.speak, request, telling))
            talking.set()
            self._workflow.turns += 1
            self._committed(key, request, spoke(step, agent, done))
        await self._log.flush()
        return done.text

    async def listen(self, step: Step, listening: Listening) -> None:
        """A listening, with or without a note. Raises AgentmemError."""
        agent = listening.agent
        async with self._in_order[agent]:
            request_id = self._next_id(agent)
            call: Callable[[], Awaitable[Done]]
            request: _Request
            if listening.notes:
                request = note_request(self._definition, listening, self._keys[agent], request_id)
                call = partial(self._turns.speak, request, Teller())
            else:
                request = listen_request(self._definition, listening, self._keys[agent], request_id)
                call = partial(self._turns.listen, request)
            key = f"listened/{agent}/{self._done[agent]}"
            known = self._known(key, request)
            if known is not None:
                self._versions[agent] = known.agent_listened.version.version
                return
            try:
                done = await self._ask(agent, request, call)
            except Aborted:
                if listening.role == "system" and agent not in self._own:
                    return  # it has a memory, so it knows who it is
                raise
            self._committed(key, request, listened(step, agent, done))
        await self._log.flush()

    async def _ask(self, agent: str, request: _Request, call: Callable[[], Awaitable[Done]]) -> Done:
        self.anew = True
        if agent in self._own:  # nobody else speaks to it; and one that has expired must not begin again from nothing
            request.if_version = self._versions[agent]
        async with self._room:
            done = await call()
        self._versions[agent] = done.finished.version.version
        return done

    def _known(self, key: str, request: _Request) -> Event | None:
        logged = self._log.find(key)
        if logged is None:
            return None
        if logged.digest != _digest(request):
            raise FailedPrecondition(
                "the run was begun by another version of agentmem, which asked its agents otherwise; begin a new one"
            )
        return logged.event

    def _committed(self, key: str, request: _Request, told: Event) -> None:
        self._workflow.update_time.GetCurrentTime()
        self._log.add(key, told, _digest(request))

    def _next_id(self, agent: str) -> str:
        self._done[agent] += 1
        return f"{self._workflow.workflow_id}/{agent}/{self._done[agent]}"


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


def _digest(request: _Request) -> bytes:
    """What is asked, without what may differ when it is asked again."""
    asked = type(request)()
    asked.CopyFrom(request)  # type: ignore[arg-type]
    asked.ClearField("if_version")
    asked.ClearField("expiry")
    return hashlib.sha256(asked.SerializeToString(deterministic=True)).digest()[:16]
