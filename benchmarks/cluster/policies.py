"""On which node a turn runs: the policies that are compared. Pure.

An agent's order of nodes is a random permutation that stays: as rendezvous hashing gives it, without a hash a node.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

BUSIER = 1.25
"""How much more than the mean a node may have to do before others are preferred."""
SMALL = 1.0
"""Turns beyond that, which do not count."""
NOWHERE = -1
_MASK = (1 << 64) - 1


@dataclass
class View:
    """A gateway's knowledge: ready nodes, and the load of each with its own sent turns."""

    ready: Sequence[bool]
    load: Callable[[int], int]
    limit: float
    """Beyond it a node is passed over, see `limit`."""


Policy = Callable[[int, int, View, Iterator[int]], int]
"""By agent, the node that committed its state or NOWHERE, the view, and its order of nodes."""


def limit(loads: int, ready: int) -> float:
    return BUSIER * loads / ready + SMALL


def order(agent: int, nodes: int, seed: int = 0) -> Iterator[int]:
    given: set[int] = set()
    state = (agent * 0xD1B54A32D192ED03 + seed * 0xAEF17502108EF2D9) & _MASK
    while len(given) < nodes:
        state = (state + 0x9E3779B97F4A7C15) & _MASK
        mixed = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        node = (mixed ^ (mixed >> 31)) % nodes
        if node not in given:
            given.add(node)
            yield node


def rendezvous(_agent: int, _last: int, view: View, ordered: Iterator[int]) -> int:
    return next(node for node in ordered if view.ready[node])


def bounded(_agent: int, _last: int, view: View, ordered: Iterator[int]) -> int:
    """The first of its order that is ready and not much busier than the others."""
    first = NOWHERE
    for node in ordered:
        if view.ready[node]:
            if view.load(node) <= view.limit:
                return node
            first = node if first == NOWHERE else first
    return first


def last_holder(agent: int, last: int, view: View, ordered: Iterator[int]) -> int:
    """The node that committed its state, unless that is much busier than the others."""
    if last != NOWHERE and view.ready[last] and view.load(last) <= view.limit:
        return last
    return bounded(agent, last, view, ordered)


class RoundRobin:
    def __init__(self) -> None:
        self._next = 0

    def __call__(self, _agent: int, _last: int, view: View, _ordered: Iterator[int]) -> int:
        while True:
            node = self._next = (self._next + 1) % len(view.ready)
            if view.ready[node]:
                return node


def policies() -> dict[str, Policy]:
    return {
        "round robin": RoundRobin(),
        "rendezvous": rendezvous,
        "bounded": bounded,
        "bounded, last holder": last_holder,
    }
