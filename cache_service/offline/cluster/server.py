"""A cluster's PostgreSQL, for commands: opened and closed, its failures in words."""

from collections.abc import Iterator
from contextlib import contextmanager

from agentmem.errors import AgentmemError
from cache_service.ledger.postgres.database import Postgres
from cache_service.ledger.postgres.failures import OutcomeUnknown
from cache_service.ledger.postgres.settings import Settings, UnsafeServer
from cache_service.ledger.schema import SchemaTooNew
from cache_service.offline.findings import CannotCheck


@contextmanager
def opened(settings: Settings) -> Iterator[Postgres]:
    """The ledger, its tables made or migrated. Raises CannotCheck, also for what the server raises meanwhile."""
    postgres = Postgres(settings)
    try:
        postgres.open()
        yield postgres
    except OutcomeUnknown as error:
        raise CannotCheck(f"it is not known whether it was done ({error.message}); run this again") from error
    except AgentmemError as error:
        raise CannotCheck(error.message) from error
    except (UnsafeServer, SchemaTooNew) as error:
        raise CannotCheck(f"--cluster: {error}") from error
    finally:
        postgres.close()
