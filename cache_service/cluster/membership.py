"""A thread that sends a heartbeat every two seconds and reads the other nodes.

Others wait for a node until its lease ends by the server's clock; it stops serving a little earlier by its own. After
an expired lease its files follow the ledger again before it is ready.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Set
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

from agentmem.distribution import version
from agentmem.errors import AgentmemError, Unavailable
from agentmem.process.logs import event
from agentmem.v1 import cluster_pb2 as pb
from agentmem.validation import AgentKey
from cache_service.cluster import nodes
from cache_service.cluster.clock import SharedClock
from cache_service.cluster.nodes import Beat, NameTaken, Node, Said
from cache_service.ledger.clock import BOOT_CLOCK
from cache_service.ledger.ledgers import Ledgers
from cache_service.tiers.replication import Nodes

log = logging.getLogger(__name__)

BEAT_SECONDS: Final = 2.0
SILENT_SECONDS: Final = 5.0
"""Then a gateway counts as silent."""
_LEASE_SECONDS: Final = nodes.LEASE / 10**9
_SOONER: Final = 1.0
"""Seconds by which a node stops serving before its lease ends."""


@dataclass(frozen=True)
class Report:
    ready: bool = False
    draining: bool = False
    load: int = 0
    models: tuple[pb.NodeModel, ...] = ()
    running: frozenset[AgentKey] = frozenset()
    at: float = -SILENT_SECONDS


@dataclass(eq=False)
class Membership(Nodes):
    """`join` once, then `start`, and `leave` at the end. Other methods on any thread."""

    _said: Said
    _cluster_id: str
    _database: Ledgers
    """Its own: turns must not keep a heartbeat waiting."""
    _clock: SharedClock
    _wait: Callable[[float], None]
    """Waits so many seconds, or until `wake` or other nodes end it."""
    wake: Callable[[], None]
    """Sends a heartbeat now."""
    _holders: Callable[[], Set[str]] = frozenset
    """Returns this store's gateways that attend to workflow runs."""
    _followed: Callable[[], int] = lambda: 0
    _follow: "Callable[[], Future[None]]" = Future
    """Have files follow the ledger, on their own thread; `_reconcile`: all of it again."""
    _reconcile: "Callable[[], Future[None]]" = Future
    _thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._report = Report()
        self._view: tuple[Node, ...] = ()
        self._beaten = -_LEASE_SECONDS
        self.keys_version = ""
        """As old as `nodes` at most."""
        self._epoch = 0
        self._reconciled = False
        self._rejoins = 0
        self._following: tuple[Future[None], int | None] | None = None
        """Reconciling for so many rejoins, or (None) following."""
        self._claimed: frozenset[AgentKey] | None = None
        self._objects = False
        self._stopping = threading.Event()
        self._after_beat: list[Callable[[], None]] = []
        self.lost: Exception | None = None
        """Another process is this node."""
        self.beats = 0

    def join(self) -> None:
        """Blocks. Raises NameTaken, and as a write."""
        self._beat()
        self._reconciled = True

    def start(
        self,
        followed: Callable[[], int],
        follow: "Callable[[], Future[None]]",
        reconcile: "Callable[[], Future[None]]",
    ) -> None:
        """Begin to send heartbeats. `followed` returns the last change of KV that files have followed."""
        self._followed, self._follow, self._reconcile = followed, follow, reconcile
        self._thread = threading.Thread(target=self._run, name="membership", daemon=True)
        self._thread.start()

    def leave(self) -> None:
        self._stopping.set()
        self.wake()
        if hasattr(self, "_thread"):
            self._thread.join()
        try:
            self._database.write_blocking(nodes.leave, self.name, self._epoch)
        except (AgentmemError, OSError) as error:
            event(log, "the cluster was left without a word", logging.WARNING, error=str(error))

    def report(self, new: Report) -> None:
        with self._lock:
            before, self._report = self._report, new
        was_silent = new.at - before.at > SILENT_SECONDS
        if was_silent or (before.ready, before.draining) != (new.ready, new.draining):
            self.wake()

    def problem(self) -> str:
        """Return why this node is not a member; empty if it is."""
        if self.lost is not None:
            return str(self.lost)
        silent = self.silent_seconds
        if silent >= _LEASE_SECONDS - _SOONER:
            return f"the ledger's database has not answered for {silent:.0f} s"
        return "" if self._reconciled else "files follow the ledger, of which this node was cut off"

    def nodes(self) -> list[pb.Node]:
        """Raises Unavailable where this node is not a member."""
        if problem := self.problem():
            raise Unavailable(f"this node is not a member of its cluster now: {problem}")
        return self._seen()

    def holders(self) -> Set[str]:
        """Return the gateways that attend to workflow runs at other nodes, as of the last heartbeat."""
        others = {each.name for each in self._there()} - {self.name}
        return {
            holder for each in self._view if each.name in others for holder in pb.Node.FromString(each.report).holders
        }

    def counts(self) -> Counter[str]:
        """Count ready, draining, other and gone nodes."""
        counted: Counter[str] = Counter()
        for each in self._seen():
            states = ((not _is_there(each), "gone"), (each.draining, "draining"), (each.ready, "ready"))
            counted[next((name for holds, name in states if holds), "other")] += 1
        return counted

    @property
    def silent_seconds(self) -> float:
        """With the machine's sleep."""
        return time.clock_gettime(BOOT_CLOCK) - self._beaten

    def live(self, name: str) -> pb.Node | None:
        return next((each for each in self._there() if each.name == name), None)

    @property
    def name(self) -> str:
        return self._said.name

    @property
    def cluster_id(self) -> str:
        return self._cluster_id

    def others(self) -> Set[str]:
        return {each.name for each in self._there()} - {self.name}

    def after_beat(self, call: Callable[[], None]) -> None:
        self._after_beat.append(call)

    @property
    def sweeps(self) -> bool:
        """This node deletes objects for all: it is the first that can."""
        able = [each.name for each in self._there() if each.objects]
        return not able or self.name == min(able)

    def reach_objects(self, reached: bool) -> None:
        if self._objects is not reached:
            self._objects = reached
            self.wake()

    def _seen(self) -> list[pb.Node]:
        """Return nodes with the present rest of their leases."""
        aged = int(self.silent_seconds * 10**9)
        return [_message(each._replace(expires=each.expires - aged)) for each in self._view]

    def _there(self) -> list[pb.Node]:
        return [each for each in self._seen() if _is_there(each)]

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._round()
            except NameTaken as error:
                self.lost = error
                event(log, "another process is this node", logging.ERROR, error=str(error))
                return
            except Exception as error:  # noqa: BLE001 - whatever it is, the next heartbeat tries again
                event(log, "heartbeat failed", logging.WARNING, error=str(error) or type(error).__name__)
            self._rest()

    def _rest(self) -> None:
        try:
            self._wait(BEAT_SECONDS)
        except Exception as error:  # noqa: BLE001 - nor may this be the end of heartbeats
            event(log, "hears nothing of other nodes", logging.WARNING, error=str(error) or type(error).__name__)
            self._stopping.wait(BEAT_SECONDS)

    def _round(self) -> None:
        beat = self._beat()
        if self._have_followed():
            beat = self._beat()
        if self._following is None and not self._reconciled:
            event(log, "this node was cut off from the cluster; its files follow the ledger anew", logging.WARNING)
            self._begin(self._reconcile(), self._rejoins)
        elif self._following is None and beat.newest > self._followed():
            self._begin(self._follow(), None)
        self._claim(beat.rejoined)
        for call in self._after_beat:
            call()

    def _begin(self, work: "Future[None]", rejoins: int | None) -> None:
        self._following = work, rejoins
        work.add_done_callback(lambda _: self.wake())

    def _have_followed(self) -> bool:
        """Raises as the files' work."""
        if self._following is None or not self._following[0].done():
            return False
        (work, rejoins), self._following = self._following, None
        work.result()
        if rejoins == self._rejoins:
            self._reconciled = True
        return True

    def _beat(self) -> Beat:
        began, now = time.clock_gettime(BOOT_CLOCK), time.monotonic()
        followed = self._followed() if self._reconciled else 0
        said = self._said._replace(followed=followed, report=self._encoded(now))
        beat = self._database.write_blocking(nodes.beat, said, self._epoch)
        if beat.rejoined and self._epoch:
            self._reconciled, self._rejoins = False, self._rejoins + 1
        with self._lock:
            self.keys_version = beat.keys_version  # before the lease is a new one
            self._view, self._epoch, self._beaten = tuple(beat.nodes), beat.epoch, began
        self._clock.set(beat.time, beat.wall)
        self.beats += 1
        return beat

    def _claim(self, rejoined: bool) -> None:
        with self._lock:
            running = self._report.running
        before = None if rejoined or self._claimed is None else self._claimed
        begun, ended = running - (before or frozenset()), None if before is None else before - running
        if begun or ended or ended is None:
            self._database.write_blocking(nodes.claim, self.name, sorted(begun), ended and sorted(ended))
        self._claimed = running

    def _encoded(self, now: float) -> bytes:
        with self._lock:
            report = self._report
        silent = now - report.at > SILENT_SECONDS
        said = pb.Node(
            ready=report.ready and self._reconciled and not silent,
            draining=report.draining,
            load=report.load,
            models=report.models,
            version=version(),
            objects=self._objects,
            holders=self._holders(),
        )
        return said.SerializeToString()


def _is_there(node: pb.Node) -> bool:
    return node.expires_in.ToNanoseconds() > 0


def _message(node: Node) -> pb.Node:
    message = pb.Node.FromString(node.report)
    message.name, message.epoch, message.address = node.name, node.epoch, node.address
    message.expires_in.FromNanoseconds(max(0, node.expires))
    message.heard_ago.FromNanoseconds(max(0, nodes.LEASE - node.expires))
    message.ready = message.ready and node.expires > 0
    message.ClearField("holders")
    return message
