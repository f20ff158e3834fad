"""Gateways of the simulation, as many as nodes, and their knowledge of these."""

from collections import Counter

from benchmarks.cluster.policies import View, limit


class Gateways:
    """Each knows of a node's load the last heartbeat and what it sent there in two periods; without heartbeats, all."""

    def __init__(self, nodes: int, *, heartbeats: bool) -> None:
        self.ready = [True] * nodes
        self._heartbeats = heartbeats
        self._loads = [0] * nodes
        self._seen = [0] * nodes if heartbeats else self._loads
        self._able, self._total, self._total_seen = nodes, 0, 0
        self._sent: Counter[tuple[int, int]] = Counter()
        self._sent_before: Counter[tuple[int, int]] = Counter()
        self._own: Counter[int] = Counter()
        self._own_before: Counter[int] = Counter()

    def view(self, gateway: int) -> View:
        if not self._heartbeats:
            return View(self.ready, self._loads.__getitem__, limit(self._total, self._able))
        seen, sent, before = self._seen, self._sent, self._sent_before
        total = self._total_seen + self._own[gateway] + self._own_before[gateway]
        return View(
            self.ready,
            lambda node: seen[node] + sent.get((gateway, node), 0) + before.get((gateway, node), 0),
            limit(total, self._able),
        )

    def came(self, gateway: int, node: int) -> None:
        self._loads[node] += 1
        self._total += 1
        if self._heartbeats:
            self._sent[gateway, node] += 1
            self._own[gateway] += 1

    def left(self, node: int) -> None:
        self._loads[node] -= 1
        self._total -= 1

    def beat(self) -> None:
        self._seen = self._loads.copy()
        self._total_seen = self._total
        self._sent_before, self._sent = self._sent, Counter()
        self._own_before, self._own = self._own, Counter()

    def gone(self, node: int) -> None:
        self.ready[node] = False
        self._able -= 1
        self._total -= self._loads[node]
        self._total_seen -= self._seen[node]
        self._loads[node] = self._seen[node] = 0
