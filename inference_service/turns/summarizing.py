"""Notes that replace what a summarizing agent's memory loses: turns that keep nothing."""

from dataclasses import dataclass
from typing import Final

from agentmem.errors import AgentmemError
from agentmem.v1 import inference_pb2, types_pb2
from inference_service.domain import MessagesInput, TokenEvent, TokensInput, TurnRequest
from inference_service.engine.generation import TurnJob
from inference_service.engine.thread import EngineThread
from inference_service.memory.match import MatchLimits
from inference_service.memory.plan import Planner
from inference_service.memory.trimming import room_for_summary
from inference_service.models.loaded import LoadedModel
from inference_service.pool.admission import MemoryRequest
from inference_service.storage.client import Opened
from inference_service.text.answering import split_answer
from inference_service.text.prompt import Rendered
from inference_service.threads import WorkerThreads
from inference_service.turns.planning import TurnPlanner
from inference_service.turns.restored import Restored
from inference_service.turns.restoring import Restorer
from inference_service.turns.turn import Note, Turn

_INSTRUCTION: Final = (
    "Our conversation up to here will be removed to make room. Write a note for yourself that replaces it: what was "
    "said that matters later, above all facts, names, numbers, decisions and what is still to be done. Write only the "
    "note, in at most {words} words."
)
_WORDS_PER_TOKEN: Final = 0.5
"""Cautious in any language, so that the note ends by itself."""


@dataclass(eq=False, repr=False)
class Summarizer:
    """Event loop only, under the agent's lock, before the turn has memory."""

    engine: EngineThread
    threads: WorkerThreads
    planner: TurnPlanner
    restorer: Restorer

    async def note(self, turn: Turn, model: LoadedModel, opened: Opened) -> Note:
        """Return a note of what the plan drops, or why there is none. Raises a cancellation."""
        try:
            return await self._written(turn, model, opened)
        except AgentmemError as error:
            turn.stream.check()
            return Note(failure=f"the model could not write it ({error.code.name})")

    async def _written(self, turn: Turn, model: LoadedModel, opened: Opened) -> Note:
        request, stream = await self.threads.plan(lambda: _request(turn, model)), turn.stream
        asking = Turn(request)
        await self.planner.plan(asking, model, opened)
        said: list[TokenEvent] = []
        memory = MemoryRequest(request.key, asking.lookup.own, asking.most_tokens)
        async with model.memory.reserve(memory) as asking.reservation:
            restored = await self.restorer.find(request.key, model, asking.lookup, asking.reservation)
            job = TurnJob(
                asking.plan.sequence.tolist(),
                restored.sequence,
                asking.decoding,
                said.append,
                stream.cancelled,
                reused=restored.tokens,
                anew=Restored(model, room=asking.reservation).sequence,
                arrays=asking.reservation.array_bytes > 0,
            )
            interrupt, stream.interrupt = stream.interrupt, None  # The engine looks at the flag before every step.
            try:
                self.engine.begin(lambda: model.engine.add(job), job.future)
                await self.engine.wait(job.future)
            finally:
                stream.interrupt = interrupt
            stream.check()
            job.future.result()
        note = "".join(event.text for event in said) + job.result.rest.text
        if model.reasoning is not None:
            note = split_answer(model.reasoning, model.tokenizer, job.sequence, job.result.token_ids).text
        note = note.strip()
        if job.result.reason != types_pb2.FINISH_REASON_STOP:
            return Note(failure=f"the note was longer than {request.max_tokens} tokens")
        return Note(note) if note else Note(failure="the model wrote nothing")


def _request(turn: Turn, model: LoadedModel) -> TurnRequest:
    """Return a turn of what is dropped, then the instruction. Raises FailedPrecondition."""
    assert turn.plan.trim is not None
    tokens = room_for_summary(model.context_length)
    dropped = turn.ledger.kept(turn.plan.trim.dropped)
    instruction = {"role": "user", "content": _INSTRUCTION.format(words=max(1, int(tokens * _WORDS_PER_TOKEN)))}
    specials = Planner(model.tokenizer, model.renderer, MatchLimits()).specials(dropped)
    kept, addition = model.renderer.continuation(
        Rendered(dropped.text, tuple(specials)),
        MessagesInput((instruction,)),
        generation_prompt=True,
        parse_special=False,
        answered=dropped.ends_with_an_answer,
    )
    past = dropped.token_ids[: dropped.tokens_within(kept)].tolist()
    return TurnRequest(
        key=turn.request.key,
        input=TokensInput((*past, *model.renderer.encode(addition, continues=True))),
        digest=b"",
        max_tokens=tokens,
        cache_policy=inference_pb2.CACHE_POLICY_READ_ONLY,
    )
