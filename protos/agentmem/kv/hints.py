"""Turn hints: in how many steps agents speak next. The worker evicts from the pool by them, the store from the disk.

- A hint is for the agent's next turn that generates. That turn ends the hint that it found on arrival, not one set
  since: runners look ahead. A failed turn ends none.
- Steps do not count down: the caller sends all agents' hints each time.
- Hints reorder agents within their own namespace only.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from threading import Lock

from agentmem.errors import InvalidArgument
from agentmem.v1 import agent_pb2
from agentmem.validation import AgentKey

MAX_NAMESPACE_HINTS = 10_000
HINT_SECONDS = 600.0
"""A dead workflow must not keep its agents in memory."""

_NEVER, _UNKNOWN, _SOON = range(3)


@dataclass(frozen=True, eq=False)
class Hint:
    """Steps until an agent's next turn (None: never again), until `ends`. Compared by identity."""

    steps: int | None
    ends: float


class TurnHints:
    """One for each process. Any thread. `now` is in seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = Lock()
        self._hints: dict[str, dict[AgentKey, Hint]] = {}
        """By namespace, the first to expire first."""

    def set(self, hints: Mapping[AgentKey, int | None]) -> None:
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
        with self._lock:
            return self._hints.get(key.namespace, {}).get(key)

    def forget(self, key: AgentKey, hint: Hint | None) -> None:
        """End a hint, unless another was set since."""
        with self._lock:
            held = self._hints.get(key.namespace, {})
            if hint is not None and held.get(key) is hint:
                del held[key]

    def is_over(self, key: AgentKey) -> bool:
        return self._ranks([key])[key][0] == _NEVER

    def order(self, keys: Iterable[AgentKey]) -> list[AgentKey]:
        """Return agents in the order of eviction, from the order of last use.

        Within a namespace: those that never speak again, those without a hint, then by distance and last use.
        """
        by_use = list(keys)
        return _ordered(by_use, self._ranks(by_use))

    def evictable_before(self, keys: Iterable[AgentKey], to: AgentKey) -> list[AgentKey]:
        """Return those to evict before `to` if that were used now: none of its namespace that speak as soon."""
        by_use = [*(key for key in keys if key != to), to]
        ranks = self._ranks(by_use)
        ordered = _ordered(by_use, ranks)
        before = ordered[: ordered.index(to)]
        as_soon = ranks[to] if ranks[to][0] == _SOON else None
        return [key for key in before if key.namespace != to.namespace or ranks[key] != as_soon]

    def _ranks(self, keys: Iterable[AgentKey]) -> dict[AgentKey, tuple[int, int]]:
        """Rank all at one moment: no hint expires between them."""
        now = self._now()
        with self._lock:
            return {key: _rank(self._hints.get(key.namespace, {}).get(key), now) for key in keys}


def from_request(request: agent_pb2.SetTurnHintsRequest) -> "dict[AgentKey, int | None]":
    """Raises InvalidArgument."""
    hints = {}
    for index, hint in enumerate(request.hints):
        try:
            key = AgentKey.from_proto(hint.key)
        except InvalidArgument as error:
            raise InvalidArgument(f"hints[{index}].{error.field}", error.problem) from error
        hints[key] = hint.steps if hint.HasField("steps") else None
    return hints


def _drop_oldest(held: dict[AgentKey, Hint], now: float) -> None:
    while held and (len(held) > MAX_NAMESPACE_HINTS or held[next(iter(held))].ends <= now):
        del held[next(iter(held))]


def _rank(hint: Hint | None, now: float) -> tuple[int, int]:
    """The first is evicted first."""
    if hint is None or hint.ends <= now:
        return _UNKNOWN, 0
    return (_NEVER, 0) if hint.steps is None else (_SOON, -hint.steps)


def _ordered(by_use: list[AgentKey], ranks: Mapping[AgentKey, tuple[int, int]]) -> list[AgentKey]:
    """Sort each namespace's agents by rank, within their places by last use."""
    of_namespace: dict[str, list[AgentKey]] = {}
    for key in by_use:
        of_namespace.setdefault(key.namespace, []).append(key)
    ranked = {namespace: iter(sorted(own, key=ranks.__getitem__)) for namespace, own in of_namespace.items()}
    return [next(ranked[key.namespace]) for key in by_use]
