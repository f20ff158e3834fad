"""Turn hints: in how many steps agents speak next, as the runner of a workflow knows it.

The worker evicts by them from the pool, and the store from the disk. Least recently used is the wrong guess where
agents take turns: the one that spoke longest ago speaks next.

- It is of the agent's next turn that generates. Taking context in (Prefill) is no turn, and leaves it.
- A turn ends the hint that stood when it arrived, and none that was set since: who runs a workflow looks ahead while an
  agent speaks. A turn that comes to nothing ends none. One that is replayed ends it as it did, or would have done, the
  first time, on the worker; the store hears of commits only, so there it stands until the next one.
- Steps do not count down. Hints of different moments cannot be compared, and only the caller knows what a step is and
  which turns are of the same workflow. So send the whole cast each time.
- Hints change the order among the agents of their own namespace only: each namespace keeps the places that its agents
  have by last use, and its hints say which of them go there. So no agent is evicted because another namespace calls
  its own urgent. The price: an agent that never speaks again goes before all others of its namespace,
  and not before one of another's that was idle for longer.
- It is bounded: in time, and in number per namespace, where the oldest go first.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from threading import Lock

from agentmem.errors import InvalidArgument
from agentmem.v1 import agent_pb2
from agentmem.validation import AgentKey

MAX_NAMESPACE_HINTS = 10_000
"""That hold in one namespace."""
HINT_SECONDS = 600.0
"""How long a hint holds if the agent has no turn: a workflow that died must not keep its agents for ever."""

_NEVER, _UNKNOWN, _SOON = range(3)


@dataclass(frozen=True, eq=False)
class Hint:
    """What was said of an agent: `steps` until its next turn, None for never again; until `ends`, by TurnHints' clock.

    Compared by identity: the same thing said again is another hint.
    """

    steps: int | None
    ends: float


class TurnHints:
    """The hints that hold; one for each process. Any thread. `now` is a clock in seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = Lock()
        self._hints: dict[str, dict[AgentKey, Hint]] = {}
        """By namespace, the oldest first, which are also the first to end."""

    def set(self, hints: Mapping[AgentKey, int | None]) -> None:
        """Replace the hints of these agents: steps until the next turn, None for never again."""
        now = self._now()
        with self._lock:
            for key, steps in hints.items():
                held = self._hints.setdefault(key.namespace, {})
                held.pop(key, None)
                held[key] = Hint(steps, now + HINT_SECONDS)
            for namespace, held in list(self._hints.items()):
                _drop_oldest(held, now)
                if not held:
                    del self._hints[namespace]

    def of(self, key: AgentKey) -> Hint | None:
        """Return the agent's present hint, for `forget`."""
        with self._lock:
            return self._hints.get(key.namespace, {}).get(key)

    def forget(self, key: AgentKey, hint: Hint | None) -> None:
        """The agent has had the turn that `hint` was of. One that was set since stays."""
        with self._lock:
            held = self._hints.get(key.namespace, {})
            if hint is not None and held.get(key) is hint:
                del held[key]

    def is_over(self, key: AgentKey) -> bool:
        """Whether the agent will not speak again, as far as was said."""
        return self._ranks([key])[key][0] == _NEVER

    def order(self, keys: Iterable[AgentKey]) -> list[AgentKey]:
        """Return agents in the order of eviction; `keys` are in the order of last use, least recently used first.

        Within a namespace: those that never speak again, those without a hint, the rest by distance, then by last use.
        """
        by_use = list(keys)
        return _ordered(by_use, self._ranks(by_use))

    def evictable_before(self, keys: Iterable[AgentKey], to: AgentKey) -> list[AgentKey]:
        """Return those of `keys`, ordered likewise, that are evicted before the agent `to` if it were used just now.

        Agents of its namespace that speak as soon are not among them.
        """
        by_use = [*(key for key in keys if key != to), to]
        ranks = self._ranks(by_use)
        ordered = _ordered(by_use, ranks)
        before = ordered[: ordered.index(to)]
        as_soon = ranks[to] if ranks[to][0] == _SOON else None
        return [key for key in before if key.namespace != to.namespace or ranks[key] != as_soon]

    def _ranks(self, keys: Iterable[AgentKey]) -> dict[AgentKey, tuple[int, int]]:
        """All at one moment, or a hint that ends meanwhile would tear an order apart."""
        now = self._now()
        with self._lock:
            return {key: _rank(self._hints.get(key.namespace, {}).get(key), now) for key in keys}


def from_request(request: agent_pb2.SetTurnHintsRequest) -> "dict[AgentKey, int | None]":
    """The hints of a request, checked. Raises InvalidArgument."""
    hints = {}
    for index, hint in enumerate(request.hints):
        try:
            key = AgentKey.from_proto(hint.key)
        except InvalidArgument as error:
            raise InvalidArgument(f"hints[{index}].{error.field}", error.problem) from error
        hints[key] = hint.steps if hint.HasField("steps") else None
    return hints


def _drop_oldest(held: dict[AgentKey, Hint], now: float) -> None:
    """Those that have ended, and those beyond the bound."""
    while held and (len(held) > MAX_NAMESPACE_HINTS or held[next(iter(held))].ends <= now):
        del held[next(iter(held))]


def _rank(hint: Hint | None, now: float) -> tuple[int, int]:
    """What agents of a namespace are sorted by, those to evict first in front."""
    if hint is None or hint.ends <= now:
        return _UNKNOWN, 0
    return (_NEVER, 0) if hint.steps is None else (_SOON, -hint.steps)


def _ordered(by_use: list[AgentKey], ranks: Mapping[AgentKey, tuple[int, int]]) -> list[AgentKey]:
    """Each namespace's agents by rank, in the places that they have together by last use."""
    of_namespace: dict[str, list[AgentKey]] = {}
    for key in by_use:
        of_namespace.setdefault(key.namespace, []).append(key)
    ranked = {namespace: iter(sorted(own, key=ranks.__getitem__)) for namespace, own in of_namespace.items()}
    return [next(ranked[key.namespace]) for key in by_use]
