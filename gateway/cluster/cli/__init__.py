"""`agentmem cluster`."""

from typing import Final

from gateway.cli.groups import Lazy

COMMANDS: Final = (
    Lazy("cluster", "gateway.cluster.cli.command:cluster", "List nodes, make certificates, move or check ledgers."),
)
