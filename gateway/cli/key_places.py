"""The places of `agentmem keys`: a file, or a cluster's database."""

import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from agentmem.console import Mistake
from gateway.edge import key_file
from gateway.edge.keys import ApiKey


class Place(Protocol):
    """A place of keys. Methods raise Mistake and FileError."""

    def add(self, keys: Iterable[ApiKey]) -> int:
        """Add keys, all or none, except those that exist; return how many were new."""

    def every(self) -> list[ApiKey]:
        """Return all keys."""

    def revoke(self, key_id: str) -> bool:
        """Return whether there was such a key."""

    @property
    def delay(self) -> str:
        """When a change takes effect, in words."""


@dataclass(frozen=True)
class InFile:
    """The file of one or several gateways."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def add(self, keys: Iterable[ApiKey]) -> int:
        with key_file.changing(self.path) as known:
            new = [key for key in keys if known.get(key.id) != key]
            if taken := next((key.id for key in new if key.id in known), ""):
                raise Mistake(f"another key has the id {taken}; revoke that one first")
            known.update({key.id: key for key in new})
        return len(new)

    def every(self) -> list[ApiKey]:
        return list(key_file.read(self.path)[0].values())

    def revoke(self, key_id: str) -> bool:
        if not self.path.exists() or key_id not in key_file.read(self.path)[0]:
            return False
        with key_file.changing(self.path) as known:
            return known.pop(key_id, None) is not None

    @property
    def delay(self) -> str:
        return "gateways with this file refuse it from the next request on"


@dataclass(frozen=True)
class InCluster:
    """A cluster's database, reached by a process of the store's, since services never import each other.

    Hashes go through a pipe, and the URL through the environment. `arguments` are its options.
    """

    url: str
    arguments: tuple[str, ...]

    def __str__(self) -> str:
        return "the cluster's database"

    def add(self, keys: Iterable[ApiKey]) -> int:
        return int(self._run("add", given=key_file.render(keys)))

    def every(self) -> list[ApiKey]:
        return list(key_file.parse(Path(str(self)), self._run("list")).values())

    def revoke(self, key_id: str) -> bool:
        return self._run("revoke", "--", key_id).strip() == "1"

    @property
    def delay(self) -> str:
        return "nodes refuse it within two seconds; one that is cut off from the database refuses all after ten"

    def _run(self, name: str, *what: str, given: str = "") -> str:
        command = [sys.executable, "-m", "cache_service.cluster.offline.commands", "keys", name, *self.arguments, *what]
        ended = subprocess.run(
            command, input=given, capture_output=True, encoding="utf-8", check=False, env=self._environment()
        )
        if ended.returncode:
            raise Mistake(ended.stderr.strip().removeprefix("Error: "))
        return ended.stdout

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "AGENTMEM_UP_CLUSTER": self.url, "PYTHONUTF8": "1"}
