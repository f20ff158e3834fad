"""Renews this node's lease and reads the nodes, once a second, through this node's store."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final, NamedTuple

import grpc

from agentmem import errors
from agentmem.process.logs import event
from agentmem.v1 import cluster_pb2, cluster_pb2_grpc, model_pb2, types_pb2
from agentmem.validation import AgentKey
from gateway import upstream
from gateway.cluster import keys as cluster_keys
from gateway.cluster.keys import ClusterKeys
from gateway.cluster.metrics import ClusterMetrics
from gateway.cluster.router import Located, NodeView
from gateway.cluster.stale_memory import StaleMemory
from gateway.worker import Worker

log = logging.getLogger(__name__)

PERIOD_SECONDS: Final = 1.0
SYNC_SECONDS: Final = 3.0
LOCATE_SECONDS: Final = 1.0
"""Then a turn is routed without the agent's place."""

_ALMOST_SECONDS: Final = 2.0
"""Before a lease ends, as it is known here."""


class _Sent(NamedTuple):
    """A turn that runs on another node."""

    node: str
    key: AgentKey
    began: float


class Membership:
    """Event loop only: `sync` once, then `watch`, and `leave` before this gateway drains.

    `unready` returns why this node could not run a turn, "" if it could.
    """

    def __init__(
        self,
        store: grpc.aio.Channel,
        worker: Worker,
        own: str,
        unready: Callable[[], str],
        metrics: ClusterMetrics,
        memory: StaleMemory,
        keys: ClusterKeys | None = None,
    ) -> None:
        self._memory = memory
        self._keys = keys
        self._cluster: cluster_pb2_grpc.ClusterServiceAsyncStub = cluster_pb2_grpc.ClusterServiceStub(store)
        self._worker = worker
        self.own = own
        self._unready = unready
        self._metrics = metrics
        self._wake = asyncio.Event()
        self._stopping = False
        self.draining = False
        self.cluster_id = ""
        self._served: list[cluster_pb2.NodeModel] = []
        self._known: list[cluster_pb2.Node] = []
        self._ends: dict[str, float] = {}
        self._synced = 0.0
        self._failure = "the cache store was not asked yet"
        self._running: Counter[AgentKey] = Counter()
        self._here = 0
        self._sent: dict[object, _Sent] = {}
        self._counted = 0.0

    @property
    def problem(self) -> str:
        """Why this node is not a member; empty if it is."""
        if self.alive(self.own):
            return ""
        return f"this node is not among the cluster's: {self._failure or 'its lease has ended'}"

    def alive(self, name: str) -> bool:
        """Return whether a node's lease has not ended, also in this machine's sleep."""
        return self._ends.get(name, 0.0) > cluster_keys.now()

    def nodes(self) -> list[NodeView]:
        """Return all nodes, with turns that this one has sent."""
        return [
            NodeView(
                node.name,
                node.address,
                node.ready and not node.draining and self.alive(node.name),
                self._load(node),
                {model.model_id: model.fingerprint for model in node.models},
            )
            for node in self._known
        ]

    def report(self) -> list[cluster_pb2.Node]:
        """Return all nodes, with the present rest of their leases."""
        now, told = cluster_keys.now(), []
        for known in self._known:
            node = cluster_pb2.Node()
            node.CopyFrom(known)
            node.heard_ago.FromTimedelta(known.heard_ago.ToTimedelta() + timedelta(seconds=self.age))
            node.expires_in.FromMilliseconds(max(0, round((self._ends[known.name] - now) * 1000)))
            told.append(node)
        return told

    @property
    def age(self) -> float:
        return cluster_keys.now() - self._synced if self._synced else 0.0

    async def locate(self, key: AgentKey) -> Located:
        """Return where an agent is: at the last node that this one sent a turn to, else as the store says."""
        if node := next((sent.node for sent in reversed(self._sent.values()) if sent.key == key), ""):
            return Located(node)
        asked = cluster_pb2.LocateAgentRequest(key=key.to_proto())
        try:
            found = await self._cluster.LocateAgent(asked, timeout=LOCATE_SECONDS)
        except grpc.aio.AioRpcError as error:
            log.debug("where an agent is was not found: %s", error.details())
            return Located()
        return Located(found.running_on, found.last_on)

    @contextmanager
    def sent(self, node: str, key: AgentKey) -> Iterator[None]:
        """Count a turn on another node, until its own count has it."""
        turn = object()
        self._sent[turn] = _Sent(node, key, cluster_keys.now())
        try:
            yield
        finally:
            del self._sent[turn]

    @contextmanager
    def turn(self, key: AgentKey) -> Iterator[None]:
        self._here += 1
        if key.agent_id:
            self._running[key] += 1
        try:
            yield
        finally:
            self._here -= 1
            if key.agent_id:
                self._running[key] -= 1
                if not self._running[key]:
                    del self._running[key]
                self._memory.note(key)

    async def sync(self) -> None:
        """Report this node's state and read the nodes; the list gets older where the store does not answer."""
        await self._look_at_models()
        request = cluster_pb2.SyncNodeRequest(
            ready=not (self._unready() or self.draining),
            draining=self.draining,
            load=self._here,
            models=self._served,
            running=[key.to_proto() for key in self._running if _is_valid(key)],
        )
        asked = cluster_keys.now()
        try:
            answer = await self._cluster.SyncNode(request, timeout=SYNC_SECONDS)
            if self._keys is not None:
                await self._read_keys(self._keys, answer, asked)
        except grpc.aio.AioRpcError as error:
            self._failed(errors.from_peer(error, upstream.unreachable(upstream.STORE).message).message)
        else:
            self._read(answer, asked)
        self._metrics.nodes(len(self._known), sum(node.ready for node in self.nodes()))

    async def watch(self, changed: Callable[[], Awaitable[None]]) -> None:
        """Sync once a second, and after `wake`, until `stop`."""
        while not self._stopping:
            try:
                async with asyncio.timeout(PERIOD_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            if not self._stopping:
                await self.sync()
                await changed()

    def wake(self) -> None:
        self._wake.set()

    async def leave(self) -> None:
        self.draining = True
        await self.sync()

    def stop(self) -> None:
        self._stopping = True
        self._wake.set()

    def _load(self, node: cluster_pb2.Node) -> int:
        if node.name == self.own:
            return self._here
        return node.load + sum(sent.node == node.name and sent.began > self._counted for sent in self._sent.values())

    def _read(self, answer: cluster_pb2.SyncNodeResponse, asked: float) -> None:
        now = cluster_keys.now()
        if self._failure:
            event(log, "this node is among the cluster's", node=answer.name, nodes=len(answer.nodes))
        if self._failure or now > self._ends.get(self.own, now) - _ALMOST_SECONDS:  # nobody may have waited for it
            self._memory.drop()
        self._counted = self._synced  # later turns may not be counted yet
        self._failure, self._synced, self.cluster_id = "", asked, answer.cluster_id
        self._known = list(answer.nodes)
        self._ends = {node.name: asked + node.expires_in.ToTimedelta().total_seconds() for node in answer.nodes}

    async def _read_keys(self, keys: ClusterKeys, answer: cluster_pb2.SyncNodeResponse, asked: float) -> None:
        if keys.version != answer.keys_version:
            keys.take(await self._cluster.GetKeys(cluster_pb2.GetKeysRequest(), timeout=SYNC_SECONDS))
        lease = next((node.expires_in for node in answer.nodes if node.name == answer.name), None)
        if lease is not None:
            keys.confirm(asked + lease.ToTimedelta().total_seconds())

    def _failed(self, message: str) -> None:
        if not self._failure:
            event(log, "the cluster's nodes cannot be read", logging.WARNING, error=message)
        self._failure = message

    async def _look_at_models(self) -> None:
        """Ask for models; without an answer keep the last ones."""
        found: list[model_pb2.Model] = []
        request = model_pb2.ListModelsRequest(page_size=1000)
        try:
            while True:
                page = await self._worker.call(request, SYNC_SECONDS)
                found += page.models
                request.page_token = page.next_page_token
                if not request.page_token:
                    break
        except errors.AgentmemError:
            return
        loaded = model_pb2.MODEL_STATE_LOADED
        self._served = [
            cluster_pb2.NodeModel(model_id=each.model_id, fingerprint=each.fingerprint, loaded=each.state == loaded)
            for each in found
        ]


def _is_valid(key: AgentKey) -> bool:
    """A key that the worker is about to refuse must not fail the sync."""
    try:
        AgentKey.from_proto(key.to_proto())
    except errors.InvalidArgument:
        return False
    return True


def key_of(key: types_pb2.AgentKey) -> AgentKey:
    return AgentKey(key.namespace, key.agent_id, key.model_id)
