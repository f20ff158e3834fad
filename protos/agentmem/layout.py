"""Where an installation keeps its files, where its processes meet, and how long they take to end.

DATA                        ledgers, KV, weight hashes: one store per data directory
DATA/keys.json              the keys of callers, where `agentmem keys` is given no other file
DATA/logs/up.log            what an `agentmem up` writes that `agentmem chat --model` has started
DATA/logs/up.log.1          what was before, when that was long
DATA/run                    the run directory, unless --run-dir names another
    store.sock              the store, for its worker, and for the gateway's records of workflow runs
    worker.sock             the worker, for the gateway
    gateway.json            the addresses that the gateway really has, while it listens; "tls": "on" if so
127.0.0.1:8080, 50051       the gateway: HTTP, gRPC
127.0.0.1:9464, 9465, 9466  metrics of gateway, worker and store

The owner of a data directory is checked before anything is written to it.
"""

import os
from pathlib import Path
from typing import Final

DATABASE = "store.db"
WARM_DATABASE = "warm.db"
"""What the store knows of the files in this directory only; made anew of ledgers and files where it is not there."""
_OWN = frozenset(
    {
        *("run", "worker", "logs", "up.lock", "lock", "probe", "gateway.json", "keys.json", "keys.json.lock"),
        *("blocks", "windows", "staging"),
        *("lost+found", ".DS_Store"),  # a disk's own, and macOS'
    }
)
_OWN_SUFFIXES = (".sock", ".sock.lock")


class ForeignDirectory(Exception):
    """A directory that holds something else; the message says what to do."""


def refuse_foreign(root: Path) -> None:
    """Raise ForeignDirectory unless `root` is absent, empty, or Agentmem's.

    It is ours if it has a store.db, or nothing but names that we give. Reads names only. Raises OSError.
    """
    try:
        names = os.listdir(root)
    except FileNotFoundError:
        return
    if DATABASE in names or all(map(_is_own, names)):
        return
    raise ForeignDirectory(f"{root} is not empty and not Agentmem's; choose a directory of its own as --data")


def _is_own(name: str) -> bool:
    return name in _OWN or name.startswith((DATABASE, WARM_DATABASE)) or name.endswith(_OWN_SUFFIXES)


DATA: Final = Path("~/.agentmem")
RUN: Final = "run"
GATEWAY_FILE: Final = "gateway.json"
KEY_FILE: Final = "keys.json"

HTTP: Final = "127.0.0.1:8080"
GRPC: Final = "127.0.0.1:50051"

WORKER_METRICS: Final = 1
STORE_METRICS: Final = 2
"""How far a service's port of metrics is from the gateway's."""

_METRICS_PORT: Final = 9464

GRACE_SECONDS: Final = 10.0
"""What running requests get at shut-down, unless --grace says otherwise."""

LAST_SECONDS: Final = 3.0
"""What each of the worker's three last steps may take: cancelled turns end, blocks are written, the engine ends."""

REFUSED_SECONDS: Final = 1.0
"""What RPCs get that are still open when the worker has no turns left, and before them a model that is leaving."""

END_SECONDS: Final = 3 * LAST_SECONDS + 2 * REFUSED_SECONDS + 5.0
"""What a service has from the end of the grace until it is killed: what the worker may take, and slack."""


def data_directory(data: Path) -> Path:
    """The data directory, absolute."""
    return data.expanduser().absolute()


def run_directory(data: Path, run_dir: Path | None) -> Path:
    """The directory of the sockets, absolute: `run_dir`, or the usual one of the data directory."""
    return data_directory(data) / RUN if run_dir is None else run_dir.expanduser().absolute()


def key_file(data: Path) -> Path:
    """The usual file of keys of a data directory, absolute."""
    return data_directory(data) / KEY_FILE


def store_socket(run_directory: Path) -> str:
    """The store's address, as gRPC takes it."""
    return f"unix:{run_directory / 'store.sock'}"


def worker_socket(run_directory: Path) -> str:
    """The worker's address, as gRPC takes it."""
    return f"unix:{run_directory / 'worker.sock'}"


def metrics(offset: int = 0) -> str:
    """The usual address of the metrics of the gateway, or of the service that is so far from it."""
    return f"127.0.0.1:{_METRICS_PORT + offset}"
