"""The same workflow without memory below the prompt: works are sent as chats to a model that keeps nothing.

With `whole` each request is the whole chat so far; without, the system text and the message that it answers.
"""

import asyncio
import time
from collections import defaultdict

from agentmem.channels import closing_stream
from agentmem.v1 import inference_pb2, inference_pb2_grpc, types_pb2, workflow_pb2
from benchmarks.working_memory.scores import Performance, Work
from gateway.workflows.definition.schema import Definition
from gateway.workflows.inboxes import Listening
from gateway.workflows.program import Program, Step, Turn

_AT_ONCE = 32
"""As many requests at once as the gateway's own runner has."""


class TextRun:
    def __init__(
        self,
        inference: "inference_pb2_grpc.InferenceServiceAsyncStub",
        definition: Definition,
        model: str,
        *,
        whole: bool,
    ) -> None:
        self._inference = inference
        self._definition = definition
        self._model = model
        self._whole = whole
        self._chats: defaultdict[str, list[types_pb2.ChatMessage]] = defaultdict(list)
        self._in_order: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._room = asyncio.Semaphore(_AT_ONCE)
        self._performance = Performance()

    async def perform(self) -> Performance:
        """Raises AioRpcError."""
        program = Program(self._definition)
        said: dict[str, str] = {}
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            while (step := program.advance(said)) is not None:
                for listening in step.listenings:
                    group.create_task(self._listen(step, listening))
                turns = {turn.agent: group.create_task(self._speak(step, turn)) for turn in step.turns}
                said = {agent: await turn for agent, turn in turns.items()}
        self._performance.seconds = time.monotonic() - began
        return self._performance

    async def _listen(self, step: Step, listening: Listening) -> None:
        async with self._in_order[listening.agent]:
            if listening.notes:
                tokens = self._definition.defaults.max_tokens
                await self._answer("note", step, listening.agent, listening.message, tokens)
            elif self._whole or listening.role == "system":
                self._chats[listening.agent].append(_message(listening.role, listening.message))

    async def _speak(self, step: Step, turn: Turn) -> str:
        async with self._in_order[turn.agent]:
            return await self._answer("turn", step, turn.agent, turn.message, turn.max_tokens)

    async def _answer(self, kind: str, step: Step, agent: str, message: str, max_tokens: int) -> str:
        chat = [*self._chats[agent], _message("user", message)]
        request = inference_pb2.GenerateRequest(
            key=types_pb2.AgentKey(model_id=self._model),
            messages=types_pb2.Messages(messages=chat),
            max_tokens=max_tokens,
            sampling=types_pb2.Sampling(temperature=0.0),
        )
        text, finished = "", inference_pb2.Finished()
        async with self._room, closing_stream(self._inference.Generate(request)) as events:
            async for event in events:
                if event.HasField("delta"):
                    text += event.delta.text
                elif event.HasField("finished"):
                    finished = event.finished
        if self._whole:
            self._chats[agent] = [*chat, _message("assistant", text)]
        told = workflow_pb2.AgentSpoke(phase=step.phase, agent_id=agent, usage=finished.usage, timings=finished.timings)
        self._performance.works.append(work(kind, told, text))
        return text


def work(kind: str, told: workflow_pb2.AgentSpoke | workflow_pb2.AgentListened, text: str) -> Work:
    return Work(
        kind=kind,  # type: ignore[arg-type]
        phase=told.phase,
        agent=told.agent_id,
        text=text,
        prompt_tokens=told.usage.prompt_tokens,
        reused_tokens=sum(part.tokens for part in told.usage.cached),
        generated_tokens=told.usage.completion_tokens,
        seconds_to_first_token=told.timings.time_to_first_token.ToTimedelta().total_seconds(),
    )


def _message(role: str, text: str) -> types_pb2.ChatMessage:
    return types_pb2.ChatMessage(role=role, content=text)
