"""A worker without MLX: `python -m benchmarks.cluster.scripted_worker --run-dir DIR`, beside a store and a gateway.

It serves what the real worker serves, on the same socket, and is SERVING while the store answers; its turns append
their request_id to their agent (`scripted_turns`).
"""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from pydantic import Field
from pydantic_settings import SettingsConfigDict

from agentmem import layout
from agentmem.channels import connect
from agentmem.process.health_changes import HealthChanges
from agentmem.process.logs import event
from agentmem.process.server import GrpcServer
from agentmem.process.service import run_service
from agentmem.process.settings import ServiceSettings
from agentmem.v1 import agent_pb2, cache_store_pb2, inference_pb2, model_pb2
from agentmem.v1.agent_pb2_grpc import add_AgentServiceServicer_to_server
from agentmem.v1.inference_pb2_grpc import add_InferenceServiceServicer_to_server
from agentmem.v1.model_pb2_grpc import add_ModelServiceServicer_to_server
from benchmarks.cluster.scripted_agents import ScriptedAgents, ScriptedModels
from benchmarks.cluster.scripted_turns import Script, ScriptedTurns
from inference_service.storage.client import StoreClient

log = logging.getLogger(__name__)


class ScriptedSettings(ServiceSettings):
    """Serves turns that take a scripted time and append their request_id to their agent."""

    model_config = SettingsConfigDict(env_prefix="AGENTMEM_SCRIPTED_", cli_prog_name="scripted_worker")
    toml_table: ClassVar[str] = "scripted"

    run_dir: Path = Field(layout.DATA / layout.RUN, description="directory of the sockets")
    model: str = Field("scripted", description="the name of its only model")
    seconds: float = Field(0.0, ge=0, description="that a turn takes until its answer")
    cold_seconds: float = Field(0.0, ge=0, description="that it takes more where the agent's memory is not hot")
    answer_seconds: float = Field(0.0, ge=0, description="that its answer takes")
    slots: int = Field(8, ge=1, description="turns that are computed at once")
    max_requests: int = Field(64, ge=1, description="requests that may run or wait before others are refused")
    grace: float = Field(layout.GRACE_SECONDS, ge=0, description="seconds that running requests get at shut-down")


def _name(proto: Any, service: str) -> str:
    return str(proto.DESCRIPTOR.services_by_name[service].full_name)


_STORE = _name(cache_store_pb2, "CacheStoreService")


async def serve(settings: ScriptedSettings, stopping: asyncio.Event) -> None:
    run_directory = layout.run_directory(layout.DATA, settings.run_dir)
    script = Script(
        *(settings.model, settings.seconds, settings.cold_seconds, settings.slots, settings.max_requests),
        answer_seconds=settings.answer_seconds,
    )
    async with connect(layout.store_socket(run_directory)) as channel:
        turns = ScriptedTurns(StoreClient(channel), script)
        server = GrpcServer(
            layout.worker_socket(run_directory),
            [
                (_name(inference_pb2, "InferenceService"), add_InferenceServiceServicer_to_server, turns),
                (_name(agent_pb2, "AgentService"), add_AgentServiceServicer_to_server, ScriptedAgents(turns)),
                (_name(model_pb2, "ModelService"), add_ModelServiceServicer_to_server, ScriptedModels(script.model_id)),
            ],
        )
        await server.start()
        following = asyncio.create_task(_follow_store(channel, server))
        event(log, "listening", address=server.address)
        await stopping.wait()
        following.cancel()
        await asyncio.wait({following})
        await server.set_serving(False)
        await server.stop(settings.grace)


async def _follow_store(channel: grpc.aio.Channel, server: GrpcServer) -> None:
    health, changes = health_pb2_grpc.HealthStub(channel), HealthChanges((channel, _STORE))
    try:
        while True:
            try:
                answer = await health.Check(health_pb2.HealthCheckRequest(service=_STORE), timeout=1)
                serving = answer.status == health_pb2.HealthCheckResponse.SERVING
            except grpc.aio.AioRpcError:
                serving = False
            await server.set_serving(serving)
            await changes.wait(soon=not serving)
    finally:
        await changes.close()


def main(arguments: Sequence[str] | None = None) -> None:
    run_service("scripted-worker", ScriptedSettings, serve, arguments)


if __name__ == "__main__":
    main()
