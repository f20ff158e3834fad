"""Agents that generate together through one door, in a process of their own: a round's request on stdin, figures out.

Reads one JSON object a line and answers each with one: `{"door": "grpc" | "http", "target": …, "agents": […], …}`. The
clients do as little as clients can, so that what is measured is the server: responses stay bytes until the end.
"""

import asyncio
import json
import resource
import sys
import time
from typing import Any, NamedTuple
from urllib.parse import quote

import grpc

from agentmem.channels import connect
from agentmem.v1 import inference_pb2, types_pb2

_GENERATE = "/agentmem.v1.InferenceService/Generate"


class Stream(NamedTuple):
    """When the pieces of one agent's answer came, by time.monotonic(), and its tokens in all."""

    arrivals: list[float]
    tokens: int


async def over_grpc(channel: grpc.aio.Channel, agent: str, asked: dict[str, Any]) -> Stream:
    """One Generate at the worker's socket or the gateway's gRPC door."""
    request = inference_pb2.GenerateRequest(
        key=types_pb2.AgentKey(namespace=asked["namespace"], agent_id=agent, model_id=asked["model"]),
        messages=types_pb2.Messages(messages=[types_pb2.ChatMessage(role="user", content=asked["prompt"])]),
        max_tokens=asked["tokens"],
        sampling=types_pb2.Sampling(logit_bias={int(token): -100.0 for token in asked["never"]}),
    )
    arrivals, last = [], b""
    generate: Any = channel.unary_stream(_GENERATE)
    async for piece in generate(request.SerializeToString()):
        arrivals.append(time.monotonic())
        last = piece
    finished = inference_pb2.GenerateResponse.FromString(last).finished
    return Stream(arrivals[1:-1], finished.usage.completion_tokens)


async def over_http(host: str, port: int, agent: str, asked: dict[str, Any]) -> Stream:
    """One streamed chat completion at the HTTP door."""
    body = json.dumps(
        {
            "model": asked["model"],
            "messages": [{"role": "user", "content": asked["prompt"]}],
            "max_tokens": asked["tokens"],
            "temperature": 0,  # the contract's default; OpenAI's is 1, and sampling costs the worker time
            "logit_bias": {token: -100 for token in asked["never"]},
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()
    reader, writer = await asyncio.open_connection(host, port)
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\nx-agent-id: {quote(agent)}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    writer.write(head.encode() + body)
    arrivals, end = [], b""
    while piece := await reader.read(1 << 16):
        arrivals += [time.monotonic()] * piece.count(b"data: {")
        end = (end + piece)[-4096:]
    writer.close()
    await writer.wait_closed()
    if b"data: [DONE]" not in end:
        raise RuntimeError(f"the stream did not end well: {end!r}")
    usage = next(line for line in reversed(end.split(b"\n")) if line.startswith(b"data: {"))
    return Stream(arrivals[1:-2], json.loads(usage[6:])["usage"]["completion_tokens"])


def steady(streams: list[Stream], tokens: int) -> dict[str, float]:
    """Tokens a second of all agents together, from when the last one has begun until the first one is done.

    Pieces stand for tokens in the proportion that each stream has of both, since a piece may hold several. Raises
    RuntimeError where an agent ended early, or where they did not all generate for most of the time.
    """
    if any(stream.tokens != tokens for stream in streams):
        raise RuntimeError(f"an answer ended early: {[stream.tokens for stream in streams]} of {tokens} tokens")
    begin = max(stream.arrivals[0] for stream in streams)
    end = min(stream.arrivals[-1] for stream in streams)
    within = [sum(begin < arrival <= end for arrival in stream.arrivals) for stream in streams]
    counted = sum(n * tokens / len(s.arrivals) for n, s in zip(within, streams, strict=True))
    if counted < 0.5 * tokens * len(streams):
        raise RuntimeError("the agents hardly generated together; ask for more tokens")
    return {
        "tokens_per_second": counted / (end - begin),
        "seconds": end - begin,
        "tokens": counted,
        "pieces": float(sum(len(stream.arrivals) for stream in streams)),
    }


async def run_round(asked: dict[str, Any]) -> dict[str, float]:
    """All agents of a round at once."""
    before = _cpu_seconds()
    if asked["door"] == "http":
        host, _, port = asked["target"].rpartition(":")
        streams = await asyncio.gather(*(over_http(host, int(port), agent, asked) for agent in asked["agents"]))
    else:
        async with connect(asked["target"]) as channel:
            streams = await asyncio.gather(*(over_grpc(channel, agent, asked) for agent in asked["agents"]))
    return {**steady(list(streams), asked["tokens"]), "clients_cpu_seconds": _cpu_seconds() - before}


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Answer rounds until stdin ends."""
    for line in sys.stdin:
        print(json.dumps(asyncio.run(run_round(json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()
