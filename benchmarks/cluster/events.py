"""Agents, gateways, nodes, and the loss of a node, event by event.

Each agent is idle, pauses within a session, or has a turn. Idle agents begin sessions by one stream of events, which
are none where the drawn agent is busy: so ten million agents are arrays. Where a node is lost, turns that are sent
there wait for a connection and go elsewhere, until its lease has ended.
"""

import gc
import heapq
import random
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.cluster.gateways import Gateways
from benchmarks.cluster.inputs import Costs
from benchmarks.cluster.nodes import Node, Turn
from benchmarks.cluster.policies import NOWHERE, Policy, order


@dataclass(frozen=True)
class Load:
    """Agents and what they ask, in seconds."""

    agents: int
    idle: float
    """An idle agent begins a session after so long, in the mean."""
    pause: float = 20.0
    """Between a turn's end and the next turn of its session, in the mean."""
    turns: float = 1.0
    """Mean turns of a session; their number is geometric."""


@dataclass(frozen=True)
class Failure:
    """The loss of a node; in `lease` seconds its streams end and it leaves routing."""

    at: float
    node: int = 0
    lease: float = 10.0
    connect: float = 2.0
    retry: float = 1.0
    uploaded: float = 5.0
    """Seconds from a commit until it is in S3."""


@dataclass
class Found:
    """Times are of turns that were asked for from `begin` on, counts of the whole run."""

    arrived: int = 0
    finished: int = 0
    unfinished: int = 0
    """Turns that are on nodes, or on their way to one, at the end."""
    first: "array[float]" = field(default_factory=lambda: array("d"))
    """Seconds to the first token; of turns that never had it, as long as they waited."""
    sources: Counter[str] = field(default_factory=Counter)
    """Where KV was, of turns that began from `begin` on."""
    commits: "array[float]" = field(default_factory=lambda: array("d"))
    """When turns ended, from `begin` on."""
    answered: float = 0.0
    """Tokens of their answers."""
    presence: list[float] = field(default_factory=list)
    """By node that was not lost, seconds of turns being there, from `begin` on."""
    lost_turns: int = 0
    """They were on the lost node."""
    lost: "array[float]" = field(default_factory=lambda: array("d"))
    """Seconds from the loss to their first token elsewhere."""
    lost_tokens: float = 0.0
    """Tokens of answers that were on their way."""
    moved: "array[float]" = field(default_factory=lambda: array("d"))
    """As `first`, of agents whose KV was on the lost node: their first turn after the loss."""
    recomputed: float = 0.0
    """Tokens whose KV only the lost node had, that were computed again until the end."""


class Simulation:
    """One run of a policy: `begin_in_sessions` or not, then `run`, once."""

    def __init__(
        self,
        nodes: int,
        costs: Costs,
        load: Load,
        policy: Policy,
        *,
        seconds: float,
        begin: float = 0.0,
        heartbeat: float = 0.0,
        failure: Failure | None = None,
        seed: int = 0,
    ) -> None:
        self._random = random.Random(seed)
        self._seed, self._costs, self._load, self._policy = seed, costs, load, policy
        self._seconds, self._begin, self._heartbeat, self._failure = seconds, begin, heartbeat, failure
        self._agenda: list[tuple[float, int, Callable[..., None], Any]] = []
        self._number = 0
        self._nodes = [Node(number, costs, self._at, self._began, self._first, self._ended) for number in range(nodes)]
        self._gateways = Gateways(nodes, heartbeats=heartbeat > 0)
        self._class = np.random.default_rng(seed).integers(0, len(costs.tokens), load.agents, np.uint8).tobytes()
        self._busy = bytearray(load.agents)
        self._holder = array("h", [NOWHERE]) * load.agents
        self._committed = array("f", [0.0]) * load.agents
        self._going: dict[Turn, None] = {}
        """On their way, while a connection fails or a client waits."""
        self._presence = [0.0] * nodes
        self.found = Found()

    def begin_in_sessions(self, rate: float) -> None:
        """Let as many agents be in sessions from the start as ask for so many turns/s."""
        load = self._load
        stay = self._costs.stay(rate / self._costs.capacity / len(self._nodes))
        pausing, answered = (round(rate * (1 - 1 / load.turns) * seconds) for seconds in (load.pause, stay))
        for number, agent in enumerate(self._random.sample(range(load.agents), pausing + answered)):
            self._busy[agent] = 1
            self._nodes[self._where(agent)].holds(agent)
            before = 0.0 if number < pausing else self._random.uniform(0, stay)
            self._at(before + self._random.expovariate(1 / load.pause), self._ask, agent)

    def run(self) -> Found:
        """Return what was found until `seconds`."""
        collecting = gc.isenabled()  # It would look at all turns, again and again; they are in no cycles.
        gc.disable()
        try:
            return self._run()
        finally:
            if collecting:
                gc.enable()

    def _run(self) -> Found:
        self._at(0.0, self._draw, None)
        if self._heartbeat:
            self._at(0.0, self._beat, None)
        if self._failure:
            self._at(self._failure.at, self._lose, self._failure)
        while self._agenda and self._agenda[0][0] <= self._seconds:
            now, _, happens, what = heapq.heappop(self._agenda)
            happens(what, now)
        self._close()
        return self.found

    def _at(self, when: float, happens: Callable[..., None], what: Any) -> None:
        self._number += 1
        heapq.heappush(self._agenda, (when, self._number, happens, what))

    def _beat(self, _: None, now: float) -> None:
        self._gateways.beat()
        self._at(now + self._heartbeat, self._beat, None)

    def _draw(self, _: None, now: float) -> None:
        agents = self._load.agents
        agent = int(self._random.random() * agents)
        if not self._busy[agent]:
            self._busy[agent] = 1
            self._ask(agent, now)
        self._at(now + self._random.expovariate(agents / self._load.idle), self._draw, None)

    def _where(self, agent: int) -> int:
        if (node := self._holder[agent]) == NOWHERE:
            node = self._holder[agent] = next(order(agent, len(self._nodes), self._seed))
        return node

    def _ask(self, agent: int, now: float) -> None:
        self.found.arrived += 1
        gateway = int(self._random.random() * len(self._nodes))
        self._send(Turn(agent, now, self._random.expovariate(1.0) * self._costs.answer, gateway), now)

    def _send(self, turn: Turn, now: float) -> None:
        self._going.pop(turn, None)
        view = self._gateways.view(turn.gateway)
        last, ordered = self._where(turn.agent), order(turn.agent, len(self._nodes), self._seed)
        node = self._nodes[self._policy(turn.agent, last, view, ordered)]
        if node.alive:
            self._take(turn, node, now)
        elif self._failure is not None:
            self._going[turn] = None
            self._at(now + self._failure.connect, self._send_elsewhere, turn)

    def _send_elsewhere(self, turn: Turn, now: float) -> None:
        self._going.pop(turn, None)
        view = self._gateways.view(turn.gateway)
        view.ready = [ready and node.alive for ready, node in zip(view.ready, self._nodes, strict=True)]
        last, ordered = self._where(turn.agent), order(turn.agent, len(self._nodes), self._seed)
        self._take(turn, self._nodes[self._policy(turn.agent, last, view, ordered)], now)

    def _take(self, turn: Turn, node: Node, now: float) -> None:
        turn.came = now
        self._gateways.came(turn.gateway, node.number)
        node.arrive(turn, now)

    def _began(self, turn: Turn, node: Node, now: float) -> tuple[float, float, float]:
        costs, number, holder = self._costs, self._class[turn.agent], self._nodes[self._where(turn.agent)]
        source, disk, card, prompt = "pool", 0.0, 0.0, costs.prompt[number]
        memory, cold = costs.memory[number], costs.cold[number]
        if holder is node:
            if turn.agent not in node.pool:
                cached = turn.agent in node.memory
                source, disk = ("page cache", memory) if cached else ("disk", costs.disk[number])
        elif holder.alive and costs.network[number] + memory < cold - prompt:
            source, disk, card = "another node", memory, costs.network[number]
        elif costs.remote[number] + memory < cold - prompt:
            source, disk, card = "S3", memory, costs.remote[number]
            prompt += self._not_uploaded(turn, holder, prompt)
        else:
            source, prompt = "computed", cold
            self.found.recomputed += 0.0 if holder.alive else costs.tokens[number]
        turn.moved = not holder.alive
        if now >= self._begin:
            self.found.sources[source] += 1
        return disk, card, prompt

    def _not_uploaded(self, turn: Turn, holder: Node, prompt: float) -> float:
        failure = self._failure
        if failure is None or holder.alive or self._committed[turn.agent] <= failure.at - failure.uploaded:
            return 0.0
        self.found.recomputed += self._costs.new_tokens + self._costs.answer
        return prompt

    def _first(self, turn: Turn, now: float) -> None:
        seconds = now - turn.arrived + self._costs.overhead
        if turn.retried and self._failure is not None:
            self.found.lost.append(now - self._failure.at + self._costs.overhead)
        elif turn.moved:
            self.found.moved.append(seconds)
        if not turn.first and turn.arrived >= self._begin:
            self.found.first.append(seconds)
        turn.first = True

    def _ended(self, turn: Turn, node: Node, now: float) -> None:
        agent, load, found = turn.agent, self._load, self.found
        found.finished += 1
        self._gateways.left(node.number)
        self._holder[agent], self._committed[agent] = node.number, now
        if now >= self._begin:
            self._presence[node.number] += now - max(turn.came, self._begin)
            found.commits.append(now)
            found.answered += turn.answer
        if self._random.random() * load.turns < 1:
            self._busy[agent] = 0
        else:
            self._at(now + self._random.expovariate(1 / load.pause), self._ask, agent)

    def _lose(self, failure: Failure, now: float) -> None:
        lost, self.found.lost_tokens = self._nodes[failure.node].lose(now)
        self.found.lost_turns = len(lost)
        for turn in lost:
            turn.retried = True
            self._going[turn] = None
            self._at(now + failure.lease + failure.retry, self._send, turn)
        self._at(now + failure.lease, self._leaves_routing, failure.node)

    def _leaves_routing(self, node: int, _now: float) -> None:
        self._gateways.gone(node)

    def _close(self) -> None:
        there = [turn for node in self._nodes for turn in node.present]
        for turn in (*there, *self._going):
            self.found.unfinished += 1
            if not turn.first and turn.arrived >= self._begin:
                self.found.first.append(self._seconds - turn.arrived)
        for turn in there:
            if turn.node is not None:
                self._presence[turn.node.number] += self._seconds - max(turn.came, self._begin)
        alive = [node.number for node in self._nodes if node.alive]
        self.found.presence = [self._presence[number] for number in alive]
