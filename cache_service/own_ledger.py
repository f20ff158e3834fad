import logging
from collections.abc import Callable

from agentmem.process.logs import event
from cache_service.files import holding
from cache_service.files.directory import DataDirectory, DirectoryUnusable
from cache_service.ledger import schema
from cache_service.ledger.clock import Clock
from cache_service.ledger.database import Database, database_errors
from cache_service.ledger.ledgers import Failure
from cache_service.ledger.writability import Writability
from cache_service.ledger_home import LedgerHome
from cache_service.offline import adoption
from cache_service.offline.database import refuse_damaged
from cache_service.tiers import quotas
from cache_service.tiers.eviction import LastUse

log = logging.getLogger(__name__)


class OwnLedger(LedgerHome):
    """store.db. Last uses are written with the next transaction."""

    database: Database
    clock: Clock

    def __init__(self, directory: DataDirectory) -> None:
        self._directory = directory
        self.database = Database(directory.database)

    def refuse(self) -> None:
        schema.refuse_newer(self._directory.database)

    def check(self) -> None:
        with database_errors():
            refuse_damaged(self._directory)

    def open(self, last_use: LastUse) -> None:
        self.database.open()
        self.database.before_commit.append(last_use.flush_agents)
        self.database.write_blocking(quotas.recount_ledgers)
        self.clock = Clock(self.database)
        self.writability = Writability(self._directory.root, self.clock)

    def adopt(self, rows: Database) -> None:
        adopted = self.database.read_blocking(
            lambda ledger: rows.write_blocking(lambda warm: adoption.adopt(self._directory, ledger, warm))
        )
        event(log, "warm.db was lost and is made anew of ledgers and files", logging.WARNING, files=adopted)

    def join(self, rows: Database) -> None:
        (ledger_id,) = self.database.read_blocking(lambda c: c.execute("SELECT ledger_id FROM ledger").fetchone())
        rows.write_blocking(holding.belong, ledger_id)

    def watch(self, failed: Callable[[Failure], None]) -> None:
        def both(failure: Failure) -> None:
            failed(failure)
            self.writability.note(failure)

        self.database.on_failure = both

    async def problem(self) -> str:
        return await self.writability.problem()

    async def stay_whole(self) -> None:
        """SQLite keeps writing to a removed file."""
        if not self.database.is_in_place():
            raise DirectoryUnusable(
                f"{self._directory.database} was removed or replaced while it was served; put the right one in its"
                " place, and start the store again"
            )

    def close(self) -> None:
        if hasattr(self, "clock"):
            self.clock.stop()
        self.database.close()
