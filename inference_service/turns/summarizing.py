"""The note of what a memory loses, for agents whose context policy is to summarize: a turn that nothing is kept of."""

import asyncio
from bisect import bisect_right
from typing import Final

from agentmem.errors import AgentmemError
from agentmem.v1 import inference_pb2, types_pb2
from inference_service.domain import MessagesInput, TokenEvent, TokensInput, TurnRequest
from inference_service.engine.generation import TurnJob
from inference_service.engine.thread import EngineThread
from inference_service.memory.match import Limits
from inference_service.memory.plan import Planner
from inference_service.memory.trimming import room_for_summary
from inference_service.models.loading import LoadedModel
from inference_service.pool.admission import Demand
from inference_service.storage.client import Opened
from inference_service.text.answering import told_apart
from inference_service.text.rendered import Rendered
from inference_service.turns.planned import Note, Planned
from inference_service.turns.preparing import Preparer
from inference_service.turns.rooms import Rooms
from inference_service.turns.running import RunningTurn

_INSTRUCTION: Final = (
    "Our conversation up to here will be removed to make room. Write a note for yourself that replaces it: what was "
    "said that matters later, above all facts, names, numbers, decisions and what is still to be done. Write only the "
    "note, in at most {words} words."
)
_WORDS_PER_TOKEN: Final = 0.5
"""A cautious guess for any language, so that the note ends by itself."""


class Summarizer:
    """Has the model write notes. Event loop only; call it under the agent's lock, before the turn has its room."""

    def __init__(self, engine: EngineThread, preparer: Preparer, rooms: Rooms) -> None:
        self._engine = engine
        self._preparer = preparer
        self._rooms = rooms

    async def note(self, turn: RunningTurn, model: LoadedModel, opened: Opened, planned: Planned) -> Note:
        """A note of what the plan drops, or why there is none. Raises what cancelled the turn."""
        try:
            return await self._written(turn, model, opened, planned)
        except AgentmemError as error:
            turn.check()
            return Note(failure=f"the model could not write it ({error.code.name})")

    async def _written(self, turn: RunningTurn, model: LoadedModel, opened: Opened, planned: Planned) -> Note:
        request = await asyncio.to_thread(_request, turn.request, model, planned)
        asked = await self._preparer.plan(request, model, opened, planned.ledger)
        said: list[TokenEvent] = []
        async with self._rooms.enter(model, Demand(request.key, asked.lookup.own, asked.most_tokens, False)) as room:
            prepared = await self._preparer.prepare(request, model, asked, room)
            job = TurnJob(
                prepared.plan.sequence,
                prepared.reuse.caches,
                prepared.decoding,
                said.append,
                turn.cancelled,
                reused=prepared.reuse.tokens,
            )
            interrupt, turn.interrupt = turn.interrupt, None  # The engine looks at the flag before every step.
            self._engine.begin(lambda: model.engine.add(job), job.future)
            await self._engine.wait(job.future)
            turn.interrupt = interrupt
            turn.check()
            job.future.result()
        note = "".join(event.text for event in said) + job.result.rest.text
        if model.reasoning is not None:
            note = told_apart(model.reasoning, model.tokenizer, prepared.plan.sequence, job.result.token_ids).text
        note = note.strip()
        if job.result.reason != types_pb2.FINISH_REASON_STOP:
            return Note(failure=f"the note was longer than {request.max_tokens} tokens")
        return Note(note) if note else Note(failure="the model wrote nothing")


def _request(request: TurnRequest, model: LoadedModel, planned: Planned) -> TurnRequest:
    """The turn that asks for the note: what is dropped, and behind it the instruction. Raises FailedPrecondition."""
    assert planned.plan.trim is not None
    tokens = room_for_summary(model.context_length)
    dropped = planned.ledger.kept(planned.plan.trim.dropped)
    instruction = {"role": "user", "content": _INSTRUCTION.format(words=max(1, int(tokens * _WORDS_PER_TOKEN)))}
    specials = Planner(model.tokenizer, model.renderer, Limits()).specials(dropped)
    kept, addition = model.renderer.continuation(
        Rendered(dropped.text, tuple(specials)),
        MessagesInput((instruction,)),
        cue=True,
        parse_special=False,
        answered=dropped.ends_with_an_answer,
    )
    past = dropped.token_ids[: bisect_right(dropped.offsets, kept)]
    return TurnRequest(
        key=request.key,
        input=TokensInput((*past, *model.renderer.encode(addition, continues=True))),
        digest=b"",
        max_tokens=tokens,
        cache_policy=inference_pb2.CACHE_POLICY_READ_ONLY,
    )
