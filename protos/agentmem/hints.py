"""Turn hints: in how many steps agents speak next, as whoever runs a workflow knows it.

The worker evicts by them from the pool, and the store from the disk. Least recently used is the wrong guess where
agents take turns: who spoke longest ago speaks next.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

from agentmem.errors import InvalidArgument
from agentmem.keys import AgentKey
from agentmem.v1 import agent_pb2

MAX_HINTS = 1000
HINT_SECONDS = 600.0
"""How long a hint holds if the agent has no turn: a workflow that died must not keep its agents for ever."""

_NEVER, _UNKNOWN, _SOON = range(3)


class _Hint(NamedTuple):
    steps: int | None
    ends: float


class TurnHints:
    """The hints that hold. Any thread. `now` is a clock in seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._hints: dict[AgentKey, _Hint] = {}

    def set(self, hints: "dict[AgentKey, int | None]") -> None:
        """Replace the hints of these agents: steps until the next turn, None for never again."""
        now = self._now()
        held = {key: hint for key, hint in self._hints.items() if hint.ends > now}
        self._hints = {**held, **{key: _Hint(steps, now + HINT_SECONDS) for key, steps in hints.items()}}

    def forget(self, key: AgentKey) -> None:
        """The agent has had its turn: what was said of it is over."""
        self._hints.pop(key, None)

    def rank(self, key: AgentKey) -> tuple[int, int]:
        """What to sort agents by, those to evict first in front: who never speaks again, who has no hint, the rest by
        distance. Sort what is in the order of last use, so that this decides among equals."""
        hint = self._hints.get(key)
        if hint is None or hint.ends <= self._now():
            return _UNKNOWN, 0
        return (_NEVER, 0) if hint.steps is None else (_SOON, -hint.steps)


def from_request(request: agent_pb2.SetTurnHintsRequest) -> "dict[AgentKey, int | None]":
    """The hints of a request, checked. Raises InvalidArgument."""
    if len(request.hints) > MAX_HINTS:
        raise InvalidArgument("hints", f"must be at most {MAX_HINTS}, are {len(request.hints)}")
    hints = {}
    for index, hint in enumerate(request.hints):
        try:
            key = AgentKey.from_proto(hint.key)
        except InvalidArgument as error:
            raise InvalidArgument(f"hints[{index}].{error.field}", error.problem) from error
        hints[key] = hint.steps if hint.HasField("steps") else None
    return hints
