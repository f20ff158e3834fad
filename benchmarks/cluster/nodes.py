"""One node of the simulation: slots, a disk, a network card, and a GPU.

A turn keeps a slot until its answer is complete. Disk, card and prompts take one turn after the other; answers are
decoded together, while no prompt is computed.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from benchmarks.cluster.inputs import Costs

Schedule = Callable[[float, Callable[..., None], Any], None]
"""Calls a function with an argument at a time."""


class Turn:
    """A turn of an agent: when it was asked for, where it is now, and how far."""

    __slots__ = ("agent", "answer", "arrived", "came", "end", "first", "gateway", "moved", "node", "retried")

    def __init__(self, agent: int, arrived: float, answer: float, gateway: int) -> None:
        self.agent = agent
        self.arrived = arrived
        self.answer = answer
        self.gateway = gateway
        self.came = arrived
        """When it came to the node where it is."""
        self.node: Node | None = None
        """None while it is on none."""
        self.first = False
        """It has its first token."""
        self.end = -1.0
        """The node's count of steps at which its answer is complete; negative before it is decoded."""
        self.moved = False
        """The node that had its KV was lost."""
        self.retried = False
        """It ran on a node that was lost."""


class Node:
    """`now` never goes back. `began` returns seconds of disk, card and GPU for a turn that has a slot."""

    def __init__(
        self,
        number: int,
        costs: Costs,
        schedule: Schedule,
        began: Callable[[Turn, "Node", float], tuple[float, float, float]],
        first: Callable[[Turn, float], None],
        ended: Callable[[Turn, "Node", float], None],
    ) -> None:
        self.number = number
        self.alive = True
        self.present: dict[Turn, None] = {}
        """Its turns, in the order in which they came."""
        self.waiting: deque[Turn] = deque()
        self.pool: OrderedDict[int, None] = OrderedDict()
        """Agents whose KV is in the pool, the latest last; `memory`: in the page cache."""
        self.memory: OrderedDict[int, None] = OrderedDict()
        self._step = costs.step
        self._free = costs.slots
        self._pool_agents, self._memory_agents = costs.pool_agents, costs.memory_agents
        self._schedule, self._began, self._first, self._ended = schedule, began, first, ended
        self._disk = self._card = 0.0
        self._prompts: deque[tuple[Turn, float]] = deque()
        self._computing: Turn | None = None
        self._decoding: list[tuple[float, int, Turn]] = []
        self._steps, self._since = 0.0, 0.0
        self._stamp = self._sequence = 0

    def arrive(self, turn: Turn, now: float) -> None:
        turn.node = self
        self.present[turn] = None
        if self._free:
            self._admit(turn, now)
        else:
            self.waiting.append(turn)

    def holds(self, agent: int) -> None:
        """Note that an agent's KV is in the pool and in the page cache."""
        for cache, most in ((self.pool, self._pool_agents), (self.memory, self._memory_agents)):
            if agent in cache:
                cache.move_to_end(agent)
            else:
                cache[agent] = None
                if len(cache) > most:
                    cache.popitem(last=False)

    def lose(self, now: float) -> tuple[list[Turn], float]:
        self._advance(now)
        self.alive = False
        tokens = sum(turn.answer - (turn.end - self._steps) for _, _, turn in self._decoding)
        lost, self.present = [*self.present], {}
        for turn in lost:
            turn.node, turn.end = None, -1.0
        return lost, tokens

    def _admit(self, turn: Turn, now: float) -> None:
        self._free -= 1
        disk, card, prompt = self._began(turn, self, now)
        if not disk and not card:
            self._ready(turn, prompt, now)
            return
        there = now
        if card:
            there = self._card = max(there, self._card) + card
        if disk:
            there = self._disk = max(there, self._disk) + disk
        self._schedule(there, self._loaded, (turn, prompt))

    def _loaded(self, given: tuple[Turn, float], now: float) -> None:
        turn, prompt = given
        if turn.node is self:
            self._ready(turn, prompt, now)

    def _ready(self, turn: Turn, prompt: float, now: float) -> None:
        self._prompts.append((turn, prompt))
        if self._computing is None:
            self._advance(now)
            self._next(now)

    def _next(self, now: float) -> None:
        self._stamp += 1
        if self._prompts:
            self._computing, seconds = self._prompts.popleft()
            self._schedule(now + seconds, self._computed, self._computing)
        elif self._decoding:
            left = max(0.0, self._decoding[0][0] - self._steps)
            self._schedule(now + left * self._step[len(self._decoding)], self._decoded, self._stamp)

    def _computed(self, turn: Turn, now: float) -> None:
        if turn.node is not self:
            return
        self._computing, self._since = None, now
        self._first(turn, now)
        self._sequence += 1
        turn.end = self._steps + turn.answer
        heappush(self._decoding, (turn.end, self._sequence, turn))
        self._next(now)

    def _decoded(self, stamp: int, now: float) -> None:
        if stamp != self._stamp or not self.alive:
            return
        self._since = now
        self._steps, _, turn = heappop(self._decoding)
        self._free += 1
        del self.present[turn]
        turn.node = None
        self.holds(turn.agent)
        self._ended(turn, self, now)
        if self.waiting and self._free:
            self._admit(self.waiting.popleft(), now)
        if self._computing is None:
            self._next(now)

    def _advance(self, now: float) -> None:
        if self._decoding and self._computing is None:
            self._steps += (now - self._since) / self._step[len(self._decoding)]
        self._since = now
