"""The cache store's process: `agentmem-store`, or `python -m cache_service`."""

import sys
from collections.abc import Sequence

from agentmem.extras import needing_servers


def main(arguments: Sequence[str] | None = None) -> None:
    """Run until SIGTERM or SIGINT, or run a command of `offline.commands`."""
    with needing_servers():
        from agentmem.process.service import run_service
        from cache_service.files.directory import DirectoryUnusable
        from cache_service.ledger.schema import ForeignDatabase
        from cache_service.offline import commands
        from cache_service.offline.database import DatabaseDamaged
        from cache_service.process import serve
        from cache_service.settings import StoreSettings
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] in commands.main.commands:
        commands.main(given, prog_name="agentmem-store")
    run_service("store", StoreSettings, serve, arguments, (DirectoryUnusable, DatabaseDamaged, ForeignDatabase))


if __name__ == "__main__":
    main()
