"""Where an RPC that REST serves is answered: in the worker, or in this process."""

from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from gateway import upstream


class Service(Protocol):
    """Answers RPCs with one request. Both raise AgentmemError; who leaves cancels what was asked for."""

    def answer(self, rpc: MethodDescriptor, request: Message) -> Coroutine[Any, Any, Message]:
        """Return the response of a unary RPC."""

    def stream(self, rpc: MethodDescriptor, request: Message) -> AsyncGenerator[Message, None]:
        """Yield the messages of a server's stream."""


@dataclass(frozen=True)
class Forwarded:
    """RPCs of the process behind `channel`."""

    channel: grpc.aio.Channel

    def connect(self, rpc: MethodDescriptor) -> Any:
        """Return an RPC of any kind as its generated stub is called."""
        return upstream.stub(self.channel, rpc, GetMessageClass(rpc.output_type).FromString)

    def answer(self, rpc: MethodDescriptor, request: Message) -> Coroutine[Any, Any, Message]:
        return upstream.result(self.connect(rpc)(request))

    def stream(self, rpc: MethodDescriptor, request: Message) -> AsyncGenerator[Message, None]:
        return upstream.messages(self.connect(rpc)(request))


@dataclass(frozen=True)
class Own:
    """RPCs of a servicer in this process, which uses no more of gRPC than its messages.

    A streaming RPC is its method `events`, which returns the messages' generator.
    """

    servicer: Any

    async def answer(self, rpc: MethodDescriptor, request: Message) -> Message:
        """Return the response of a unary RPC."""
        answered: Message = await getattr(self.servicer, rpc.name)(request, None)
        return answered

    async def stream(self, rpc: MethodDescriptor, request: Message) -> AsyncGenerator[Message, None]:  # noqa: ARG002
        """Yield the messages of a server's stream."""
        async with aclosing(await self.servicer.events(request)) as events:
            async for event in events:
                yield event
