"""The places of `agentmem keys`: a file, or a cluster's database."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from agentmem.console import Mistake
from gateway.edge import key_file
from gateway.edge.keys import ApiKey

Keys = dict[str, ApiKey]


@dataclass(frozen=True)
class InFile:
    """The file of one or several gateways. Methods raise Mistake and FileError."""

    delay: ClassVar[str] = "gateways with this file refuse it from the next request on"
    """When a change takes effect, in words."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def read(self) -> Keys:
        """Return the keys by id."""
        return key_file.read(self.path)[0]

    def change(self, edit: Callable[[Keys], object]) -> None:
        """Write the keys that `edit` makes of the present ones."""
        with key_file.changing(self.path) as known:
            edit(known)


@dataclass(frozen=True)
class InCluster:
    """A cluster's database, reached by a process of the store's, since services never import each other.

    Hashes go through a pipe, and the URL through the environment. `arguments` are its options. Methods raise as
    InFile's.
    """

    delay: ClassVar[str] = (
        "nodes refuse it within two seconds; one that is cut off from the database refuses all after ten"
    )

    url: str
    arguments: tuple[str, ...]

    def __str__(self) -> str:
        return "the cluster's database"

    def read(self) -> Keys:
        return self._get()[1]

    def change(self, edit: Callable[[Keys], object]) -> None:
        """`edit` may be called several times."""
        while True:
            version, known = self._get()
            edit(known)
            if self._run("put", version, given=key_file.render(known.values())) == "1\n":
                return

    def _get(self) -> tuple[str, Keys]:
        version, _, text = self._run("get").partition("\n")
        return version, key_file.parse(Path(str(self)), text) if text else {}

    def _run(self, *what: str, given: str = "") -> str:
        command = [sys.executable, "-m", "cache_service.cluster.offline.commands", "keys", *what, *self.arguments]
        environment = {**os.environ, "AGENTMEM_UP_CLUSTER": self.url, "PYTHONUTF8": "1"}
        ended = subprocess.run(
            command, input=given, capture_output=True, encoding="utf-8", check=False, env=environment
        )
        if ended.returncode:
            raise Mistake(ended.stderr.strip().removeprefix("Error: "))
        return ended.stdout


Place = InFile | InCluster


def add(place: Place, keys: Iterable[ApiKey]) -> int:
    """Add keys, all or none, except those that exist; return how many were new. Raises Mistake, FileError."""
    new: Keys = {}

    def edit(known: Keys) -> None:
        nonlocal new
        new = {key.id: key for key in keys if known.get(key.id) != key}
        if taken := next((key_id for key_id in new if key_id in known), ""):
            raise Mistake(f"another key has the id {taken}; revoke that one first")
        known.update(new)

    place.change(edit)
    return len(new)
