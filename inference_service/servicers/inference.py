"""InferenceService on the worker."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from agentmem.errors import FailedPrecondition
from agentmem.kv.ledger import Ledger
from agentmem.v1 import inference_pb2 as pb
from agentmem.v1 import inference_pb2_grpc
from agentmem.validation import MAX_REQUEST_ID_BYTES, AgentKey, check_text
from inference_service.domain import AppendInput
from inference_service.models.serving import Models
from inference_service.servicers.requests import generate_request, prefill_request, turn_input
from inference_service.storage.client import StoreClient
from inference_service.threads import WorkerThreads
from inference_service.turns import turn_log
from inference_service.turns.decoding import check_input
from inference_service.turns.planning import TurnPlanner
from inference_service.turns.runner import TurnRunner


@dataclass(eq=False, repr=False)
class InferenceServicer(inference_pb2_grpc.InferenceServiceServicer):
    """A caller that leaves cancels its turn."""

    runner: TurnRunner
    models: Models
    planner: TurnPlanner
    store: StoreClient
    threads: WorkerThreads

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateResponse]:
        with turn_log.refused(request.key):
            asked = await self.threads.parse(lambda: generate_request(request))
            turn = self.runner.start(asked)
        try:
            async for event in turn.events():
                yield event
        finally:
            turn.cancel()

    async def Prefill(self, request: pb.PrefillRequest, context: Any) -> pb.PrefillResponse:
        with turn_log.refused(request.key):
            asked = await self.threads.parse(lambda: prefill_request(request))
            turn = self.runner.start(asked)
        response = pb.PrefillResponse()
        try:
            async for event in turn.events():
                if event.HasField("started"):
                    response.started.CopyFrom(event.started)
                elif event.HasField("finished"):
                    response.finished.CopyFrom(event.finished)
        finally:
            turn.cancel()
        return response

    async def CountTokens(self, request: pb.CountTokensRequest, context: Any) -> pb.CountTokensResponse:
        key = AgentKey.from_proto(request.key, anonymous=request.WhichOneof("input") != "append")
        counted = await self.threads.parse(lambda: turn_input(request))
        # A count is not worth a swap: the tokenizer is all it takes.
        model = self.models.loaded(key.model_id) or await self.models.info(key.model_id)
        check_input(counted, model)
        ledger = Ledger()
        if isinstance(counted, AppendInput):
            ledger = (await self.store.open(key, peek=True)).ledger or ledger
            if len(ledger) and ledger.tokenizer_hash != model.tokenizer.hash:
                raise FailedPrecondition("the agent's ledger is of another tokenizer; its next turn renews it")
        tokens = await self.planner.count(counted, request.parse_special, model, ledger)
        return pb.CountTokensResponse(tokens=tokens, context_length=model.context_length)

    async def Abort(self, request: pb.AbortRequest, context: Any) -> pb.AbortResponse:
        namespace = check_text("namespace", request.namespace)
        request_id = check_text("request_id", request.request_id, max_bytes=MAX_REQUEST_ID_BYTES)
        return pb.AbortResponse(aborted=self.runner.abort(namespace, request_id))
