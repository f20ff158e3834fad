"""A cluster's PostgreSQL, for commands."""

from collections.abc import Iterator
from contextlib import contextmanager

from agentmem.errors import AgentmemError
from cache_service.cluster.postgres.database import Postgres
from cache_service.cluster.postgres.failures import OutcomeUnknown
from cache_service.cluster.postgres.settings import Settings, UnsafeServer
from cache_service.ledger.schema import ForeignDatabase, SchemaTooNew
from cache_service.offline.findings import CannotCheck


@contextmanager
def opened(settings: Settings, *, migrates: bool = False) -> Iterator[Postgres]:
    """Open the ledger; `migrates` makes its tables first. All failures become CannotCheck."""
    postgres = Postgres(settings)
    try:
        if migrates:
            postgres.open()
        elif not postgres.open_existing():
            raise CannotCheck("no cluster's ledger is in this database; name the one that the nodes have as --cluster")
        yield postgres
    except OutcomeUnknown as error:
        raise CannotCheck(f"it is not known whether it was done ({error.message}); run this again") from error
    except AgentmemError as error:
        raise CannotCheck(error.message) from error
    except (UnsafeServer, SchemaTooNew, ForeignDatabase) as error:
        raise CannotCheck(f"--cluster: {error}") from error
    finally:
        postgres.close()
