"""The gateway process: `python -m gateway`, or `agentmem-gateway`."""

from collections.abc import Sequence

from agentmem.extras import needing_servers


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until SIGTERM or SIGINT. Exit statuses are those of agentmem.process.service."""
    with needing_servers():
        from agentmem.process.service import run_service
        from gateway.app import run
        from gateway.settings import GatewaySettings
    run_service("gateway", GatewaySettings, run, arguments)


if __name__ == "__main__":
    main()
