"""The gateway process: `python -m gateway`, or `agentmem-gateway`."""

import asyncio

from agentmem import logs
from agentmem.exposition import AddressInUse
from agentmem.server import AddressError
from agentmem.settings import SettingsError, load
from gateway.process import run
from gateway.settings import GatewaySettings


def main() -> None:
    """Serve until SIGTERM or SIGINT; exits with one line where it cannot."""
    try:
        settings = load(GatewaySettings)
        logs.configure("gateway", settings.log_level, settings.log_format)
    except (SettingsError, ValueError) as error:
        raise SystemExit(f"agentmem-gateway: {error}") from error
    try:
        asyncio.run(run(settings))
    except (AddressError, AddressInUse) as error:
        raise SystemExit(f"agentmem-gateway: {error}") from error


if __name__ == "__main__":
    main()
