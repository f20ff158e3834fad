"""One turn as its client saw it, of the gateway or of the worker itself."""

import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from agentmem.channels import closing_stream
from agentmem.v1 import inference_pb2, inference_pb2_grpc, types_pb2
from agentmem.words import tier_name


class WrongTurn(RuntimeError):
    """A turn was not what the benchmark measures: its figures would mean something else."""


@dataclass
class Turn:
    """Seconds: `first`, `seconds` by the client's clock; `queue`, `load`, `prefill` by the worker's. `cached` tokens by
    tier, `tier` the first of them; `load_bytes` of KV read below hot.
    """

    text: str = ""
    match: str = ""
    tier: str = "none"
    cached: dict[str, int] = field(default_factory=dict)
    prompt: int = 0
    generated: int = 0
    version: int = 0
    first: float = 0.0
    seconds: float = 0.0
    queue: float = 0.0
    load: float = 0.0
    load_bytes: int = 0
    prefill: float = 0.0
    arrivals: list[float] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)

    @property
    def reused(self) -> int:
        return sum(self.cached.values())


async def ask(
    inference: "inference_pb2_grpc.InferenceServiceAsyncStub", model: str, agent: str = "", **arguments: Any
) -> Turn:
    """Take a turn, of a gateway or of a worker. Raises AioRpcError."""
    key = types_pb2.AgentKey(namespace="default", agent_id=agent, model_id=model)
    request = inference_pb2.GenerateRequest(key=key, **arguments)
    turn, sent = Turn(), time.monotonic()
    async with closing_stream(inference.Generate(request)) as events:
        async for event in events:
            if event.HasField("started"):
                _begin(turn, event.started)
            elif event.HasField("delta"):
                turn.arrivals += [time.monotonic()] * len(event.delta.token_ids)
                turn.token_ids += event.delta.token_ids
                turn.text += event.delta.text
            else:
                _end(turn, event.finished)
    turn.seconds = time.monotonic() - sent
    turn.first = turn.arrivals[0] - sent if turn.arrivals else turn.seconds
    return turn


def check(turn: Turn, prompt: int, generated: int, reused: int, tiers: Collection[str] = ()) -> Turn:
    """Raises WrongTurn."""
    said = (turn.prompt, turn.generated, len(turn.token_ids), turn.reused)
    if said != (prompt, generated, generated, reused):
        raise WrongTurn(
            f"a turn should have {prompt} tokens of prompt, generate {generated} and reuse {reused}; it had "
            f"{turn.prompt}, generated {turn.generated} and reused {turn.reused} ({turn.match}, {turn.cached})"
        )
    if not set(turn.cached) <= set(tiers):
        raise WrongTurn(f"a turn should reuse from {[*tiers]}, and reused {turn.cached}")
    if ("warm" in turn.cached) != (turn.load_bytes > 0):
        raise WrongTurn(f"a turn that reused {turn.cached} read {turn.load_bytes} bytes")
    return turn


def chat(messages: list[tuple[str, str]]) -> types_pb2.Messages:
    return types_pb2.Messages(messages=[types_pb2.ChatMessage(role=role, content=text) for role, text in messages])


def _begin(turn: Turn, started: inference_pb2.Started) -> None:
    cache = started.cache
    turn.match = types_pb2.Match.Name(cache.match).removeprefix("MATCH_")
    turn.prompt, turn.load_bytes = cache.prompt_tokens, cache.load_bytes
    turn.cached = {tier_name(part.tier): part.tokens for part in cache.cached}
    turn.tier = next(iter(turn.cached), "none")
    turn.load = started.load.ToTimedelta().total_seconds()


def _end(turn: Turn, finished: inference_pb2.Finished) -> None:
    turn.generated, turn.version = finished.usage.completion_tokens, finished.version.version
    turn.queue = finished.timings.queue.ToTimedelta().total_seconds()
    turn.prefill = finished.timings.prefill.ToTimedelta().total_seconds()
