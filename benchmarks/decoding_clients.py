"""Agents that generate together through one door, in a process of their own.

Answers questions on stdin (`benchmarks.children`): `{"do": "round", "door": "grpc" | "http", "target": …, "agents": […]
…}`. The clients do as little as clients can, so that what is measured is the server: responses stay bytes until the
end. All agents get the same `prompt`, or each its own of `token_ids`; then the answer also tells of each turn, and of
the processor time of process `worker` while all of them generated.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import Any, NamedTuple
from urllib.parse import quote

import grpc
import numpy as np
import psutil

from agentmem.channels import connect
from agentmem.v1 import inference_pb2, types_pb2
from agentmem.words import tier_name
from benchmarks.children import answer, cpu_seconds

_GENERATE = "/agentmem.v1.InferenceService/Generate"


class Stream(NamedTuple):
    """When the pieces of one agent's answer came, by time.monotonic(), and its tokens in all.

    Of gRPC also when the request was sent and when the stream had ended, and what was found in memory.
    """

    arrivals: list[float]
    tokens: int
    sent: float = 0.0
    ended: float = 0.0
    cache: types_pb2.CacheReport | None = None


async def over_grpc(channel: grpc.aio.Channel, agent: str, asked: dict[str, Any]) -> Stream:
    """One Generate at the worker's socket or the gateway's gRPC door."""
    key = types_pb2.AgentKey(namespace=asked["namespace"], agent_id=agent, model_id=asked["model"])
    request = inference_pb2.GenerateRequest(key=key, max_tokens=asked["tokens"])
    if "token_ids" in asked:
        request.token_ids.ids.extend(asked["token_ids"][agent])
        request.sampling.ignore_eos = True
    else:
        request.messages.messages.add(role="user", content=asked["prompt"])
        request.sampling.logit_bias.update({int(token): -100.0 for token in asked["never"]})
    arrivals, first, last = [], b"", b""
    raw: Any = channel  # without serializers, which the types demand: pieces stay bytes
    sent = time.monotonic()
    async for piece in raw.unary_stream(_GENERATE)(request.SerializeToString()):
        arrivals.append(time.monotonic())
        first, last = first or piece, piece
    finished = inference_pb2.GenerateResponse.FromString(last).finished
    cache = inference_pb2.GenerateResponse.FromString(first).started.cache
    return Stream(arrivals[1:-1], finished.usage.completion_tokens, sent, arrivals[-1], cache)


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


class ProcessorMeter:
    """Processor seconds that another process has used, read again and again, to be had for any span afterwards."""

    _INTERVAL = 0.02  # seconds; the kernel counts in hundredths

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._times: list[float] = []
        self._seconds: list[float] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Read in a task of this event loop meanwhile, first and last included."""
        task = asyncio.create_task(self._repeat())
        try:
            yield
        finally:
            task.cancel()
            self._read()

    def between(self, begin: float, end: float) -> float:
        """Processor seconds used from `begin` to `end`, by time.monotonic(), both while it was running."""
        first, last = np.interp([begin, end], self._times, self._seconds)
        return float(last - first)

    async def _repeat(self) -> None:
        while True:
            self._read()
            await asyncio.sleep(self._INTERVAL)

    def _read(self) -> None:
        used = self._process.cpu_times()
        self._times.append(time.monotonic())
        self._seconds.append(used.user + used.system)


def together(streams: list[Stream], tokens: int) -> dict[str, float]:
    """Tokens a second of all agents together, from the last one's second piece until the first one is done: a first
    token is told before its row is brought together with the others.

    Pieces stand for tokens in the proportion that each stream has of both, since a piece may hold several. `share` is
    how much of all tokens came in that time. Raises RuntimeError where an agent ended early.
    """
    if any(stream.tokens != tokens for stream in streams):
        raise RuntimeError(f"an answer ended early: {[stream.tokens for stream in streams]} of {tokens} tokens")
    begin = max(stream.arrivals[:2][-1] for stream in streams)
    end = min(stream.arrivals[-1] for stream in streams)
    within = [sum(begin < arrival <= end for arrival in stream.arrivals) for stream in streams]
    counted = sum(n * tokens / len(s.arrivals) for n, s in zip(within, streams, strict=True))
    return {
        "tokens_per_second": counted / (end - begin) if counted else 0.0,
        "began": begin,
        "seconds": end - begin,
        "tokens": counted,
        "pieces": float(sum(len(stream.arrivals) for stream in streams)),
        "share": counted / (tokens * len(streams)),
    }


def steady(streams: list[Stream], tokens: int) -> dict[str, float]:
    """The same. Raises RuntimeError also where they did not all generate for most of the time."""
    found = together(streams, tokens)
    if found["share"] < 0.5:
        raise RuntimeError("the agents hardly generated together; ask for more tokens")
    return found


def told(stream: Stream) -> dict[str, Any]:
    """One turn: seconds from sending to the first token and to the end, tokens, and what was reused."""
    assert stream.cache is not None
    return {
        "first": stream.arrivals[0] - stream.sent,
        "decoding": stream.arrivals[-1] - stream.arrivals[0],
        "total": stream.ended - stream.sent,
        "generated": stream.tokens,
        "prompt": stream.cache.prompt_tokens,
        "cached": {tier_name(part.tier): part.tokens for part in stream.cache.cached},
    }


async def run_round(asked: dict[str, Any]) -> dict[str, Any]:
    """All agents of a round at once."""
    before = cpu_seconds()
    meter = ProcessorMeter(asked["worker"]) if "worker" in asked else None
    async with meter.running() if meter else nullcontext():
        if asked["door"] == "http":
            host, _, port = asked["target"].rpartition(":")
            turns = (over_http(host, int(port), agent, asked) for agent in asked["agents"])
            streams = list(await asyncio.gather(*turns))
        else:
            async with connect(asked["target"]) as channel:
                streams = list(await asyncio.gather(*(over_grpc(channel, agent, asked) for agent in asked["agents"])))
    used = {"clients_cpu_seconds": cpu_seconds() - before}
    if "token_ids" not in asked:
        return steady(streams, asked["tokens"]) | used
    wall = max(stream.ended for stream in streams) - min(stream.sent for stream in streams)
    found = together(streams, asked["tokens"])
    if meter:
        found["worker_cpu_seconds"] = meter.between(found["began"], found["began"] + found["seconds"])
    return {"together": found, "wall": wall, "turns": [told(stream) for stream in streams], **used}


def one_round(**asked: Any) -> dict[str, Any]:
    """`run_round` in an event loop of its own."""
    return asyncio.run(run_round(asked))


if __name__ == "__main__":
    answer({"round": one_round})
