"""A small command line over Agentmem's gRPC door, in plain grpcio with the stubs.

python agentmem_client.py generate AGENT TEXT | list | fork AGENT NEW | export AGENT FILE | import FILE [AGENT]

Environment: AGENTMEM_ADDRESS, AGENTMEM_MODEL, AGENTMEM_API_KEY (sent as a bearer token), AGENTMEM_CA (a file, for TLS).
"""

import asyncio
import os
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from agentmem.v1 import agent_pb2, agent_pb2_grpc, inference_pb2, inference_pb2_grpc, types_pb2

PATIENCE_SECONDS, CHUNK_BYTES = 30.0, 256 * 1024
API_KEY = os.environ.get("AGENTMEM_API_KEY")
METADATA = (("authorization", f"Bearer {API_KEY}"),) if API_KEY else ()
_T = TypeVar("_T")


def key(agent: str) -> types_pb2.AgentKey:
    return types_pb2.AgentKey(agent_id=agent, model_id=os.environ.get("AGENTMEM_MODEL", "demo"))


async def generate(channel: grpc.aio.Channel, agent: str, text: str) -> None:
    message = types_pb2.ChatMessage(role="user", content=text)
    append = types_pb2.Append(messages=types_pb2.Messages(messages=[message]))
    # A retry with the same request_id gets the turn that was committed, and computes nothing.
    request = inference_pb2.GenerateRequest(key=key(agent), request_id=str(uuid.uuid4()), append=append, max_tokens=200)

    async def attempt() -> None:
        async for event in inference_pb2_grpc.InferenceServiceStub(channel).Generate(request, metadata=METADATA):
            if event.HasField("started"):
                cached = sum(part.tokens for part in event.started.cache.cached)
                print(f"[{cached} tokens from memory]", file=sys.stderr)
            elif event.HasField("delta"):
                print(event.delta.text, end="", flush=True)
            else:
                print(f"\n[version {event.finished.version.version}]", file=sys.stderr)

    await retrying(attempt)


async def list_agents(channel: grpc.aio.Channel) -> None:
    request, more = agent_pb2.ListAgentsRequest(), True
    while more:
        page = await retrying(lambda: agent_pb2_grpc.AgentServiceStub(channel).ListAgents(request, metadata=METADATA))
        for agent in page.agents:
            print(agent.key.agent_id, agent.key.model_id, f"{agent.tokens} tokens", sep="\t")
        request.page_token = page.next_page_token
        more = bool(page.next_page_token)


async def fork(channel: grpc.aio.Channel, agent: str, name: str) -> None:
    request = agent_pb2.ForkAgentRequest(key=key(agent), new_agent_id=name)
    made = await retrying(lambda: agent_pb2_grpc.AgentServiceStub(channel).ForkAgent(request, metadata=METADATA))
    print(f"{made.agent.key.agent_id}: {made.agent.tokens} tokens, version {made.agent.version.version}")


async def export(channel: grpc.aio.Channel, agent: str, path: str) -> None:
    request, part = agent_pb2.ExportAgentRequest(key=key(agent)), Path(f"{path}.part")

    async def attempt() -> None:
        with part.open("wb") as file:
            part.chmod(0o600)  # it holds all that the agent was told
            async for piece in agent_pb2_grpc.AgentServiceStub(channel).ExportAgent(request, metadata=METADATA):
                file.write(piece.chunk)

    await retrying(attempt)
    part.replace(path)  # a stream that ended without an error was the whole file


async def import_agent(channel: grpc.aio.Channel, path: str, agent: str = "") -> None:
    def messages() -> Iterator[agent_pb2.ImportAgentRequest]:
        yield agent_pb2.ImportAgentRequest(key=types_pb2.AgentKey(agent_id=agent))
        with open(path, "rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                yield agent_pb2.ImportAgentRequest(chunk=chunk)

    stub = agent_pb2_grpc.AgentServiceStub(channel)
    made = await retrying(lambda: stub.ImportAgent(messages(), metadata=METADATA))
    print(f"{made.agent.key.agent_id} on {made.agent.key.model_id}: {made.agent.tokens} tokens")


async def retrying(attempt: Callable[[], Awaitable[_T]]) -> _T:
    """The result of `attempt`, tried again after as long as the server says, or a second where none answers."""
    ends = None
    while True:
        try:
            return await attempt()
        except grpc.aio.AioRpcError as error:
            delay = 1.0 if error.code() is grpc.StatusCode.UNAVAILABLE else None
            status, info = rpc_status.from_call(error), error_details_pb2.RetryInfo()
            if any(detail.Unpack(info) for detail in (status.details if status else ())):
                delay = max(0.1, info.retry_delay.ToTimedelta().total_seconds())
            ends = ends or time.monotonic() + PATIENCE_SECONDS
            if delay is None or time.monotonic() + delay > ends:
                raise
            print(f"{error.code().name}: {error.details()} (again in {delay:g} s)", file=sys.stderr)
            await asyncio.sleep(delay)


COMMANDS = {"generate": generate, "list": list_agents, "fork": fork, "export": export, "import": import_agent}


async def main() -> None:
    name, *arguments = sys.argv[1:] or [""]
    if name not in COMMANDS:
        sys.exit(__doc__)
    address, ca = os.environ.get("AGENTMEM_ADDRESS", "127.0.0.1:50051"), os.environ.get("AGENTMEM_CA")
    tls = grpc.ssl_channel_credentials(Path(ca).read_bytes()) if ca else None
    async with grpc.aio.secure_channel(address, tls) if tls else grpc.aio.insecure_channel(address) as channel:
        try:
            await COMMANDS[name](channel, *arguments)
        except grpc.aio.AioRpcError as error:
            sys.exit(f"{error.code().name}: {error.details()}")


if __name__ == "__main__":
    asyncio.run(main())
