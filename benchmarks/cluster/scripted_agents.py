"""AgentService and ModelService of a scripted worker."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc

from agentmem.errors import NotFound
from agentmem.v1 import agent_pb2, agent_pb2_grpc, model_pb2, model_pb2_grpc
from agentmem.validation import AgentKey
from benchmarks.cluster.lists import TOKENIZER
from benchmarks.cluster.scripted_turns import CONTEXT_LENGTH, ScriptedTurns

_FORWARDED: Final = (
    *("GetAgent", "ListAgents", "FindAgent", "ListTurns", "DeleteAgent", "TrimAgent", "ForkAgent"),
    *("CreateSnapshot", "ListSnapshots", "RestoreSnapshot", "DeleteSnapshot"),
    *("PinAgent", "SetAgentTtl", "SetContextPolicy", "SetTurnHints", "EvictAgent"),
)


class ScriptedAgents(agent_pb2_grpc.AgentServiceServicer):
    """RPCs that the store answers, after the agent's running turn."""

    def __init__(self, turns: ScriptedTurns) -> None:
        self._turns = turns
        for name in _FORWARDED:
            setattr(self, name, self._forwarding(getattr(turns.store.agents, name)))

    def _forwarding(self, rpc: "grpc.aio.UnaryUnaryMultiCallable[Any, Any]") -> Callable[[Any, Any], Awaitable[Any]]:
        async def forward(request: Any, _: Any) -> Any:
            if "key" not in request.DESCRIPTOR.fields_by_name:
                return await self._turns.store.call(rpc, request)
            key = AgentKey.from_proto(request.key, any_model=True)
            async with self._turns.lock(key):
                if isinstance(request, agent_pb2.DeleteAgentRequest | agent_pb2.EvictAgentRequest):
                    self._turns.hot.pop(key, None)
                return await self._turns.store.call(rpc, request)

        return forward


class ScriptedModels(model_pb2_grpc.ModelServiceServicer):
    def __init__(self, model_id: str) -> None:
        self._model = model_pb2.Model(
            model_id=model_id,
            state=model_pb2.MODEL_STATE_LOADED,
            is_default=True,
            context_length=CONTEXT_LENGTH,
            fingerprint=TOKENIZER,
            architecture=TOKENIZER,
            tokenizer_hash=TOKENIZER,
            vocab_size=2,
        )

    async def ListModels(self, request: model_pb2.ListModelsRequest, context: Any) -> model_pb2.ListModelsResponse:
        return model_pb2.ListModelsResponse(models=[self._model])

    async def GetModel(self, request: model_pb2.GetModelRequest, context: Any) -> model_pb2.GetModelResponse:
        if request.model_id not in ("", self._model.model_id):
            raise NotFound("model", request.model_id, f"there is {self._model.model_id!r}")
        return model_pb2.GetModelResponse(model=self._model)
