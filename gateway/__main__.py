"""The gateway process: `python -m gateway`, or `agentmem-gateway`."""

import asyncio
import sys
from collections.abc import Sequence
from typing import NoReturn

from agentmem import logs
from agentmem.exposition import AddressInUse
from agentmem.server import AddressError
from agentmem.settings import SettingsError, load
from gateway.process import run
from gateway.settings import GatewaySettings


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until SIGTERM or SIGINT. Exit status 2: a wrong setting, or an address that cannot be had."""
    try:
        settings = load(GatewaySettings, arguments)
        logs.configure("gateway", settings.log_level, settings.log_format)
    except (SettingsError, ValueError) as error:
        _give_up(error)
    try:
        asyncio.run(run(settings))
    except (AddressError, AddressInUse) as error:
        _give_up(error)


def _give_up(problem: Exception) -> NoReturn:
    sys.stderr.write(f"agentmem-gateway: {problem}\n")
    raise SystemExit(2)


if __name__ == "__main__":
    main()
