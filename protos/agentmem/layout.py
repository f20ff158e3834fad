"""The files and addresses of an installation, and how long its processes take to end.

DATA                        ledgers, KV, weight hashes: one store per data directory
DATA/keys.json              callers' keys
DATA/logs/up.log            output of an `agentmem up` that `chat --model` or `launch` started
DATA/logs/up.log.1          the log before it was rotated
DATA/run                    the run directory, unless --run-dir names another; if unfit ~/.cache/agentmem/run/HASH
    store.sock, worker.sock
    gateway.json            the gateway's actual addresses, while it listens; "tls": "on" if so
"""

import hashlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

DATABASE = "store.db"
WARM_DATABASE = "warm.db"
"""The store's index of this directory's files; rebuilt if absent."""
_OWN = frozenset(
    {
        *("run", "worker", "logs", "up.lock", "lock", "probe", "gateway.json", "keys.json", "keys.json.lock"),
        *("blocks", "windows", "staging"),
        "quarantine",  # of before 0.2; each start deletes it
        *("lost+found", ".DS_Store", ".fseventsd", ".Spotlight-V100", ".Trashes", ".TemporaryItems"),  # of systems
    }
)
_OWN_SUFFIXES = (".sock", ".sock.lock")


class ForeignDirectory(Exception):
    """The message says what to do."""


def refuse_foreign(root: Path) -> None:
    """Raise ForeignDirectory unless `root` is absent, empty or ours. Raises OSError."""
    try:
        names = os.listdir(root)
    except FileNotFoundError:
        return
    if DATABASE in names or all(map(_is_own, names)):
        return
    raise ForeignDirectory(f"{root} is not empty and not Agentmem's; choose a directory of its own as --data")


def _is_own(name: str) -> bool:
    return name in _OWN or name.startswith((DATABASE, WARM_DATABASE, "._")) or name.endswith(_OWN_SUFFIXES)


def user_cache(environment: Mapping[str, str] = os.environ) -> Path:
    """For files that can be made again. Raises RuntimeError for a user without a home."""
    return Path(environment.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "agentmem"


DATA: Final = Path("~/.agentmem")
RUN: Final = "run"
GATEWAY_FILE: Final = "gateway.json"
KEY_FILE: Final = "keys.json"

HTTP: Final = "127.0.0.1:8080"
GRPC: Final = "127.0.0.1:50051"

WORKER_METRICS: Final = 1
STORE_METRICS: Final = 2
"""Offsets of metrics ports from the gateway's."""

_METRICS_PORT: Final = 9464

GRACE_SECONDS: Final = 10.0
"""Default for running requests at shutdown."""

MAX_SOCKET_PATH_BYTES: Final = 103 if sys.platform == "darwin" else 107
_LONGEST_SOCKET: Final = "worker.sock"

LAST_SECONDS: Final = 3.0
"""Limit of each of the worker's three last steps: cancelled turns, blocks, engine."""

REFUSED_SECONDS: Final = 1.0
"""Limit for RPCs that are open after the last turn."""

END_SECONDS: Final = 3 * LAST_SECONDS + 2 * REFUSED_SECONDS + 5.0
"""From the end of the grace until a service is killed."""


def data_directory(data: Path) -> Path:
    return data.expanduser().absolute()


def run_directory(data: Path, run_dir: Path | None) -> Path:
    """Return `run_dir`, or DATA/run, or one in the user's cache where DATA/run cannot have sockets."""
    if run_dir is not None:
        return run_dir.expanduser().absolute()
    usual = data_directory(data) / RUN
    if fits(usual / _LONGEST_SOCKET):
        return usual
    try:
        short = user_cache() / RUN / hashlib.sha256(os.fsencode(usual)).hexdigest()[:12]
    except RuntimeError:  # no home
        return usual
    return short if fits(short / _LONGEST_SOCKET) else usual


def fits(socket: Path | str) -> bool:
    return not socket_problem(socket)


def socket_problem(socket: Path | str) -> str:
    """Return why a path can be no socket's, as the rest of a sentence about it, or ""."""
    if len(os.fsencode(socket)) > MAX_SOCKET_PATH_BYTES:
        return f"is over {MAX_SOCKET_PATH_BYTES} bytes; choose a shorter one"
    return "has a comma, which ends a path for gRPC; choose one without" if "," in str(socket) else ""


def key_file(data: Path) -> Path:
    return data_directory(data) / KEY_FILE


def store_socket(run_directory: Path) -> str:
    return f"unix:{run_directory / 'store.sock'}"


def worker_socket(run_directory: Path) -> str:
    return f"unix:{run_directory / 'worker.sock'}"


def metrics(offset: int = 0) -> str:
    return f"127.0.0.1:{_METRICS_PORT + offset}"
