"""The run directory: whose it is, and whether its sockets' paths are short enough."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from shlex import quote

from agentmem import layout
from agentmem.checkup import Finding, existing, ok, problem, warning
from agentmem.socket_guard import MAX_SOCKET_PATH_BYTES

_NAME = "run directory"


def run_directory(directory: Path) -> Iterator[Finding]:
    """What keeps sockets out of the directory, or others in it."""
    too_long = max(len(os.fsencode(path.removeprefix("unix:"))) for path in _sockets(directory)) - MAX_SOCKET_PATH_BYTES
    if too_long > 0:
        yield problem(
            _NAME,
            f"the sockets' paths in {directory} are {too_long} bytes longer than the {MAX_SOCKET_PATH_BYTES} that the"
            " system takes",
            "choose a shorter --run-dir",
            facts={"bytes_over": too_long},
        )
    yield _access(directory)


def _access(directory: Path) -> Finding:
    if not directory.exists():
        parent = existing(directory)
        if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
            return problem(_NAME, f"{directory} cannot be made in {parent}", "choose another --run-dir")
        return ok(_NAME, f"{directory} will be made at the first start")
    if not directory.is_dir():
        return problem(_NAME, f"{directory} is not a directory", "choose another --run-dir")
    found = directory.stat()
    mode = f"{stat.S_IMODE(found.st_mode):04o}"
    if found.st_uid != os.geteuid():
        whose = f"{directory} is user {found.st_uid}'s, who could put other sockets there"
        return problem(_NAME, whose, "choose another --run-dir, or run as that user", facts={"owner": found.st_uid})
    if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        return problem(
            _NAME, f"{directory} cannot be written to", f"chmod 700 {quote(str(directory))}", facts={"mode": mode}
        )
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        replaced = f"{directory} has mode {mode}: others could put their sockets in place of ours"
        return problem(_NAME, replaced, f"chmod 700 {quote(str(directory))}", facts={"mode": mode})
    if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        seen = f"{directory} has mode {mode}: others see what is there, and cannot connect"
        return warning(_NAME, seen, f"chmod 700 {quote(str(directory))}", facts={"mode": mode})
    return ok(_NAME, str(directory))


def _sockets(directory: Path) -> tuple[str, str]:
    return layout.store_socket(directory), layout.worker_socket(directory)
