from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

from agentmem.client.connection import Attempts, Connection, Within, pages
from agentmem.client.inputs import UNSET, Timeout
from agentmem.client.records import LoadStep, Model
from agentmem.v1 import model_pb2


class AsyncModels:
    """The models of the gateway's worker. All methods raise AgentmemError."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self, *, timeout: Timeout = UNSET) -> AsyncIterator[Model]:
        """Yield the registered models, the default first."""
        return pages(self._connection, model_pb2.ListModelsRequest(), "models", Model.of, timeout)

    async def get(self, name: str = "", *, timeout: Within = UNSET) -> Model:
        """Return a model, loaded or not; by default the gateway's default."""
        request = model_pb2.GetModelRequest(model_id=name)
        return Model.of((await self._connection.call(request, timeout)).model)

    async def loading(self, name: str, *, timeout: Timeout = UNSET) -> AsyncIterator[LoadStep]:
        """Load a model, which may unload others, while its steps are iterated; the last has the model.

        If the caller leaves and no one else wants it, it is not loaded.
        """
        attempts, request = Attempts(self._connection, timeout), model_pb2.LoadModelRequest(model_id=name)
        async with aclosing(attempts.stream(request, lambda step: step.HasField("model"))) as steps:
            async for step in steps:
                if step is not None:
                    model = Model.of(step.model) if step.HasField("model") else None
                    yield LoadStep(step.stage, step.progress, model)

    async def load(self, name: str, *, timeout: Timeout = UNSET) -> Model:
        """Load a model ahead of its turns."""
        return [step async for step in self.loading(name, timeout=timeout)][-1].model or await self.get(name)

    async def unload(self, name: str, *, timeout: Timeout = UNSET) -> int:
        """Unload a model after its running turns. Return the bytes freed."""
        request = model_pb2.UnloadModelRequest(model_id=name)
        freed: int = (await self._connection.call(request, timeout)).freed_bytes
        return freed
