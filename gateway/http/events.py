"""A stream of the contract's messages as server-sent events."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from google.protobuf.message import Message
from starlette.types import Scope, Send

from gateway.api.errors import REST
from gateway.api.exchange import SseEvent
from gateway.api.rest import event_of
from gateway.http.middleware import as_our_error, broke_off, whole
from gateway.http.streaming import EventStream, ReaderStalled, until_it_begins
from gateway.settings import GatewaySettings


async def send_events(
    messages: AsyncGenerator[Message, None], scope: Scope, send: Send, settings: GatewaySettings
) -> None:
    """Answer with an event for each message, and `error` where the stream fails after it has begun.

    It begins with the first message, or after KEEP_ALIVE_SECONDS without one: what is refused is refused
    before that, and raises AgentmemError with nothing sent. Raises ReaderStalled.
    """
    async with aclosing(messages):
        first = asyncio.ensure_future(anext(messages, None))
        try:
            await until_it_begins(first)
            if first.done():
                first.result()
            stream = EventStream(send, settings.stall_limit)
            await stream.start(())
            async with stream.kept_alive():
                try:
                    message = await first
                    while message is not None:
                        await stream.send(event_of(message))
                        message = await anext(messages, None)
                    whole(scope)
                except ReaderStalled:
                    raise
                except Exception as error:  # noqa: BLE001 - a stream that began can only report its failure
                    failure = as_our_error(error)
                    broke_off(scope, failure)
                    await stream.send(SseEvent(REST.body(failure), "error"))
            await stream.end()
        finally:
            first.cancel()
            await asyncio.wait({first})
