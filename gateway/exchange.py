"""What a dialect makes of a request: turns of the contract, and the answer that takes shape from their events.

A dialect is pure translation. It knows neither sockets nor whose memory is meant: `gateway.identity` finds that out,
and `gateway.http.turns` runs the turns.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from agentmem.errors import AgentmemError
from agentmem.v1 import inference_pb2

Json = dict[str, Any]


class SseEvent(NamedTuple):
    """One server-sent event: an object that goes as JSON, or text as it is; `name` is its event field, if any."""

    data: Json | str
    name: str = ""


class Incoming(NamedTuple):
    """What a dialect may need of a request besides its body.

    `turn` is what Idempotency-Key names the turn, empty without one; `unique` is a hexadecimal number that no other
    request has, and `created` the present second of the Unix epoch.
    """

    namespace: str
    turn: str
    unique: str
    created: int


class Answer(Protocol):
    """One request's answer. The events of each choice come in order; those of different choices may mix."""

    agent_id: str
    """The agent that the first choice belongs to, set before the first event; empty where nothing is kept."""

    def add(self, choice: int, event: inference_pb2.GenerateResponse) -> None:
        """Take the next event of a choice, for `body`."""

    def events(self, choice: int, event: inference_pb2.GenerateResponse) -> Iterable[SseEvent]:
        """Take the next event of a choice; what a stream says of it."""

    def closing(self) -> Iterable[SseEvent]:
        """What a stream says when every choice is finished."""

    def failed(self, error: AgentmemError) -> Iterable[SseEvent]:
        """What a stream that has begun says of its failure. It ends with that."""

    def body(self) -> Json:
        """The whole answer, when every choice is finished."""


@dataclass(frozen=True)
class Exchange:
    """One request, translated. `turns` has one for each choice, without an agent.

    The first turn is the agent's, the others keep nothing. `previous` is the request_id of a turn that this one
    follows; its input is an append then. `label` narrows the search for the agent.
    """

    turns: tuple[inference_pb2.GenerateRequest, ...]
    answer: Answer
    streamed: bool
    label: str = ""
    previous: str = ""
