"""A cluster of Patroni for tests: two PostgreSQL servers, and etcd, which says which of them is the primary.

`patroni` and `etcd` are those on PATH (Debian: the packages patroni and etcd-server).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
import psycopg
import pytest

from tests import postgres
from tests.postgres_pair import until
from tests.system.stack import free_port

_HOST: Final = "127.0.0.1"
_ANYONE: Final = [f"host {database} all {_HOST}/32 trust" for database in ("all", "replication")]


class Member:
    def __init__(self, name: str, root: Path, etcd: int) -> None:
        self.name, self.port = name, free_port()
        self._root = root / name
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = rest = f"{_HOST}:{free_port()}"
        parameters = {"unix_socket_directories": str(self._root), "max_connections": 60, "shared_buffers": "16MB"}
        dcs = {
            **{"ttl": 20, "loop_wait": 1, "retry_timeout": 3, "primary_start_timeout": 0},
            **{"synchronous_mode": True, "synchronous_mode_strict": True},
            "postgresql": {"use_pg_rewind": True, "parameters": {"wal_log_hints": "on"}},
        }
        users = {kind: {"username": user} for kind, user in (("superuser", "agentmem"), ("replication", "replica"))}
        server = {
            **{"listen": f"{_HOST}:{self.port}", "connect_address": f"{_HOST}:{self.port}"},
            **{"data_dir": f"{self._root}/data", "bin_dir": str(postgres.programs()), "pgpass": f"{self._root}/pass"},
            **{"authentication": users, "parameters": parameters, "pg_hba": ["local all all trust", *_ANYONE]},
        }
        self._settings = {
            **{"scope": "drill", "name": name, "restapi": {"listen": rest, "connect_address": rest}},
            **{"etcd3": {"host": f"{_HOST}:{etcd}"}, "postgresql": server},
            "bootstrap": {"dcs": dcs, "initdb": [{"encoding": "UTF8"}, {"locale": "C"}]},
        }

    def start(self) -> None:
        _directory(self._root)
        file = self._root / "patroni.json"  # which is YAML
        file.write_text(json.dumps(self._settings))
        file.chmod(0o644)
        self._process = _started(["patroni", str(file)], self._root / "log")

    def signal(self, number: signal.Signals) -> None:
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGSTOP)  # none begins another
        processes = self._processes()
        self.signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
        psutil.wait_procs(processes)

    def writes(self) -> bool:
        with suppress(psycopg.OperationalError):
            address = f"host={_HOST} port={self.port} user=agentmem dbname=postgres connect_timeout=2"
            with psycopg.connect(address, autocommit=True) as connection:
                return connection.execute("SELECT pg_is_in_recovery()").fetchone() == (False,)
        return False

    def may_take_over(self) -> bool:
        """Whether Patroni knows it as a synchronous standby: PostgreSQL's own view is ahead of that."""
        with suppress(httpx.HTTPError):
            return httpx.get(f"http://{self._rest}/sync").status_code == 200
        return False

    def _processes(self) -> list[psutil.Process]:
        """Patroni's, and the server's, which is in a session of its own: found by its data."""
        found = [] if self._process is None or self._process.poll() is not None else [psutil.Process(self._process.pid)]
        with suppress(OSError, ValueError, psutil.NoSuchProcess):
            first = psutil.Process(int((self._root / "data/postmaster.pid").read_text().split()[0]))
            found += [first, *first.children(recursive=True)]
        return found


class Cluster:
    def __init__(self, members: list[Member]) -> None:
        self.members = members

    @property
    def conninfo(self) -> str:
        hosts, ports = ",".join(_HOST for _ in self.members), ",".join(str(each.port) for each in self.members)
        return f"host={hosts} port={ports} user=agentmem dbname=postgres"

    def primary(self) -> Member:
        while True:
            for member in self.members:
                if member.writes():
                    return member
            time.sleep(0.1)

    def whole(self) -> None:
        until(lambda: any(member.may_take_over() for member in self.members))


@contextmanager
def serving() -> Iterator[Cluster]:
    """A cluster that is whole. Skips the test where there is no Patroni."""
    for program in ("patroni", "etcd"):
        if shutil.which(program) is None:
            pytest.skip(f"no {program} on PATH (Debian: apt-get install patroni etcd-server)")
    root = Path(tempfile.mkdtemp(dir="/tmp", prefix="patroni"))
    _directory(root)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, root, ignore_errors=True)
        client, peer = free_port(), free_port()
        here, there = f"http://{_HOST}:{client}", f"http://{_HOST}:{peer}"
        etcd = _started(
            [
                *("etcd", f"--data-dir={root}/etcd", f"--initial-cluster=default={there}"),
                *(f"--listen-client-urls={here}", f"--advertise-client-urls={here}"),
                *(f"--listen-peer-urls={there}", f"--initial-advertise-peer-urls={there}"),
            ],
            root / "etcd.log",
        )
        stack.callback(etcd.wait)
        stack.callback(etcd.kill)
        cluster = Cluster([Member(name, root, client) for name in ("one", "two")])
        for member in cluster.members:
            stack.callback(member.kill)
            member.start()
        cluster.whole()
        yield cluster


def _directory(path: Path) -> None:
    path.mkdir(mode=0o700, exist_ok=True)
    if os.geteuid() == 0:
        os.chown(path, postgres.NOBODY, postgres.NOBODY)


def _started(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    identity: dict[str, Any] = postgres.identity()
    with log.open("ab") as output:
        return subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True, **identity)
