"""Which cluster this store is a node of, as settings name it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Survives = Literal["server", "crash", "nothing"]


@dataclass(frozen=True)
class ClusterSettings:
    """`url` is libpq's, of the ledger's database, maybe with a password; `survives` what an acknowledged turn must
    survive there; `node` this node's name; `advertise` the HOST:PORT where other nodes reach its gateway; `tls` the
    directory of the cluster's certificates; `schema` PostgreSQL's, where its tables are.
    """

    url: str = field(repr=False)
    node: str
    advertise: str
    survives: Survives = "server"
    tls: Path | None = None
    schema: str = "agentmem"
