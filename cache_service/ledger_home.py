"""Where a store's ledgers are."""

# ruff: noqa: B027 - one machine has nothing to do in many of the methods

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence, Set
from functools import cached_property
from typing import Any, Final, Protocol

from prometheus_client import CollectorRegistry

from agentmem.kv.blockfile import FileName
from agentmem.process.server import Register
from agentmem.validation import AgentKey
from cache_service.files.references import FileRow
from cache_service.ledger.clock import LedgerClock
from cache_service.ledger.database import Database
from cache_service.ledger.ledgers import Failure, Ledgers
from cache_service.tiers.blocks import BlockStore
from cache_service.tiers.eviction import LastUse
from cache_service.tiers.replication import Nodes
from cache_service.tiers.streams import BlockStreams
from cache_service.tiers.warm_rows import WarmRows

HOLDER_SECONDS: Final = 5.0
"""After which a gateway that says nothing is gone."""


class Peers(Protocol):
    """Files of KV on other nodes. Event loop; `close` before the streams."""

    async def look(self, key: AgentKey, names: Iterable[FileName]) -> list[FileRow]:
        """Return those that the node has where the agent spoke last, remembered for `fetch`."""

    async def fetch(self, namespace: str, names: Sequence[FileName]) -> None:
        """Bring those; what fails, stays away."""

    async def close(self) -> None:
        """Close the connections."""


class Holders:
    """The gateways that attend to workflow runs through this store: those that said so in the last seconds. `note` on
    one thread, `__call__` on any.
    """

    def __init__(self) -> None:
        self._heard: dict[str, float] = {}
        self._left: Set[str] = frozenset()
        self._began = time.monotonic()

    @property
    def is_new(self) -> bool:
        """Return whether gateways that are there may not have been heard yet."""
        return time.monotonic() < self._began + HOLDER_SECONDS

    def presumed(self, recorded: Iterable[str]) -> Set[str]:
        """Return the holders of records that count as there unheard: at first all that did not leave."""
        return {*recorded} - self._left if self.is_new else frozenset()

    def note(self, holder: str, *, leaving: bool = False) -> bool:
        """Note that a gateway is there, or leaves; return whether that is new."""
        before = self()
        self._left = self._left | {holder} if leaving else self._left - {holder}
        heard = {name: at for name, at in self._heard.items() if name in before - {holder}}
        self._heard = heard if leaving else heard | {holder: time.monotonic()}
        return (holder in before) == leaving

    def __call__(self) -> Set[str]:
        since = time.monotonic() - HOLDER_SECONDS
        return {name for name, at in self._heard.items() if at > since}


class LedgerHome(ABC):
    """`refuse` to `services` are called in their order at a start, `leave` and `close` at the end."""

    database: Ledgers
    clock: LedgerClock
    is_own: bool = True

    @cached_property
    def own_holders(self) -> Holders:
        return Holders()

    def holders(self) -> Set[str]:
        """Return the gateways that attend to workflow runs, those of other nodes too."""
        return self.own_holders()

    @property
    def nodes(self) -> Nodes:
        return Nodes()

    @abstractmethod
    def refuse(self) -> None:
        """Raise DirectoryUnusable, schema.SchemaTooNew for a directory that cannot be of these."""

    def check(self) -> None:
        """Raise DatabaseDamaged, schema.ForeignDatabase. The directory is ours by now."""

    @abstractmethod
    def open(self, last_use: LastUse) -> None:
        """Then there are `database` and `clock`. Raises DirectoryUnusable, schema.SchemaTooNew, Unavailable."""

    @abstractmethod
    def adopt(self, rows: Database) -> None:
        """Called where warm.db was lost, and files have no rows."""

    @abstractmethod
    def join(self, rows: Database) -> None:
        """Let warm.db be of these ledgers. Raises DirectoryUnusable."""

    @abstractmethod
    def watch(self, failed: Callable[[Failure], None]) -> None:
        """Call `failed` where the database fails."""

    def peers(self, streams: BlockStreams, registry: CollectorRegistry) -> Peers | None:  # noqa: ARG002
        return None

    def serve(self, rows: WarmRows, blocks: BlockStore, registry: CollectorRegistry) -> None:
        """Begin to follow other nodes."""

    def services(self) -> list[tuple[str, Register, Any]]:
        return []

    async def unfollowed(self, key: AgentKey) -> int:  # noqa: ARG002
        """Return how many erasures of an agent other nodes have not followed."""
        return 0

    def wake_others(self) -> None:
        """Have them follow at once."""

    @abstractmethod
    async def problem(self) -> str:
        """Return why no turn could be kept now, or ""."""

    @abstractmethod
    async def stay_whole(self) -> None:
        """Raise DirectoryUnusable where the ledgers are not this store's any more."""

    async def upkeep(self, last_use: LastUse) -> None:
        """Called every ten seconds."""

    def leave(self) -> None:
        """Follow others no more, while files can still follow."""

    @abstractmethod
    def close(self) -> None:
        """Write down what is left, and close."""
