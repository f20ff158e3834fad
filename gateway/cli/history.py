"""What is in an agent's memory, turn by turn, as the commands show it."""

from typing import Any

import grpc

from agentmem.v1 import agent_pb2, agent_pb2_grpc, types_pb2
from gateway.cli.client import retrying
from gateway.cli.contract_json import as_dict
from gateway.cli.text import iso_time, printable

_LAYOUT = "\n\t"
_AS_RENDERED = "as rendered"
"""Stands for the role of a text that the store does not know the messages of."""


async def turns_of(channel: grpc.aio.Channel, key: types_pb2.AgentKey) -> list[agent_pb2.Turn]:
    """All of an agent's turns with their texts, oldest first."""
    stub = agent_pb2_grpc.AgentServiceStub(channel)
    found: list[agent_pb2.Turn] = []
    request = agent_pb2.ListTurnsRequest(key=key, include_text=True)
    while True:
        page = await retrying(lambda: stub.ListTurns(request))
        found += page.turns
        request.page_token = page.next_page_token
        if not page.next_page_token:
            return found


def turn_as_dict(turn: agent_pb2.Turn) -> dict[str, Any]:
    """A turn as --json writes it; bytes of its text that are not UTF-8 are replaced."""
    return as_dict(turn) | {"text": turn.text.decode(errors="replace")}


def turn_text(turn: agent_pb2.Turn) -> str:
    """A turn for people: a line about it, and then each message behind its role."""
    parts = [f"version {turn.version}", f"{turn.tokens:,} tokens, {turn.generated_tokens:,} generated"]
    if time := iso_time(turn.create_time):
        parts.append(time)
    if turn.request_id:
        parts.append(printable(turn.request_id))
    if turn.cut:
        parts.append("its end was dropped")
    lines = ["", " · ".join(parts)]
    for message in turn.messages:
        if message.reasoning_content:
            lines.append(f"{printable(message.role)} thinks: {printable(message.reasoning_content, keep=_LAYOUT)}")
        content = printable(message.content, keep=_LAYOUT)
        lines.append(f"{printable(message.role) or _AS_RENDERED}: {content}".rstrip())
        if message.tool_calls_json:
            lines.append(f"{printable(message.role)} calls: {printable(message.tool_calls_json)}")
    return "\n".join(lines)
