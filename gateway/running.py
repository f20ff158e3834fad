"""The turns that this gateway has sent to a worker and that have not ended: who speaks now, and who waits."""

from collections.abc import Generator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Self

import grpc

from agentmem.v1 import inference_pb2
from gateway.api.validation import Json

_INFERENCE: Final = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"]
GENERATE: Final = f"/{_INFERENCE.full_name}/Generate"
PREFILL: Final = f"/{_INFERENCE.full_name}/Prefill"

_MOST: Final = 100
"""The most turns that are listed: the oldest."""


@dataclass(eq=False, slots=True)
class RunningTurn:
    """A turn of an agent, or of nobody. It waits for its place and its prompt until the worker has said something."""

    namespace: str
    agent_id: str
    model_id: str
    since: datetime
    answering: bool = False


class RunningTurns:
    """All that run through the channels it has made, whichever door they came by. Event loop only."""

    def __init__(self) -> None:
        self._turns: dict[RunningTurn, None] = {}

    def watched(self, channel: grpc.aio.Channel) -> grpc.aio.Channel:
        """Return a channel whose turns are known here until they end. It is closed by who made `channel`."""
        return _WatchedChannel(channel, self)

    def begun(self, request: Any) -> RunningTurn:
        """Note a turn of a request that has a key."""
        key = request.key
        turn = RunningTurn(key.namespace, key.agent_id, key.model_id, datetime.now(UTC))
        self._turns[turn] = None
        return turn

    def ended(self, turn: RunningTurn) -> None:
        """Forget it; again does nothing."""
        self._turns.pop(turn, None)

    def to_json(self) -> list[Json]:
        """Return the oldest of them for the overview."""
        return [
            {
                "namespace": turn.namespace,
                "agent_id": turn.agent_id,
                "model_id": turn.model_id,
                "state": "answering" if turn.answering else "waiting",
                "since": turn.since.isoformat(timespec="milliseconds"),
            }
            for turn in list(self._turns)[:_MOST]
        ]


class _WatchedChannel(grpc.aio.Channel):
    """Has what the gateway's doors use of a channel."""

    def __init__(self, channel: grpc.aio.Channel, turns: RunningTurns) -> None:
        self._channel = channel
        self._turns = turns

    def unary_unary(self, method: str, *args: Any, **kwargs: Any) -> Any:
        made: Any = self._channel.unary_unary(method, *args, **kwargs)
        if method != PREFILL:
            return made
        return lambda request, **how: _Unary(made(request, **how), self._turns, self._turns.begun(request))

    def unary_stream(self, method: str, *args: Any, **kwargs: Any) -> Any:
        made: Any = self._channel.unary_stream(method, *args, **kwargs)
        if method != GENERATE:
            return made
        return lambda request, **how: _Stream(made(request, **how), self._turns, self._turns.begun(request))

    def stream_unary(self, *args: Any, **kwargs: Any) -> Any:
        return self._channel.stream_unary(*args, **kwargs)

    def stream_stream(self, *args: Any, **kwargs: Any) -> Any:
        return self._channel.stream_stream(*args, **kwargs)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def close(self, grace: float | None = None) -> None:
        """Do nothing: who made the channel closes it."""

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._channel.channel_ready()


class _Call:
    """A call of a turn, known until it has ended or is cancelled: who makes calls cancels each of them in the end."""

    def __init__(self, call: Any, turns: RunningTurns, turn: RunningTurn) -> None:
        self._call = call
        self._turns = turns
        self._turn = turn

    def cancel(self) -> bool:
        """Cancel it, where it runs."""
        self._turns.ended(self._turn)
        return bool(self._call.cancel())


class _Unary(_Call):
    def __await__(self) -> Generator[Any, None, Any]:
        try:
            return (yield from self._call.__await__())
        finally:
            self._turns.ended(self._turn)


class _Stream(_Call):
    """To be read once."""

    def __aiter__(self) -> Self:
        self._messages = aiter(self._call)
        return self

    async def __anext__(self) -> Any:
        try:
            message = await anext(self._messages)
        except BaseException:  # the end of the stream, too
            self._turns.ended(self._turn)
            raise
        self._turn.answering = True
        return message
