"""The data directory: whose it is, who else can read it, and whether a store holds it. Reads names and modes."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from shlex import quote

from agentmem.checkup import Finding, existing, ok, problem, warning
from cache_service import directory_lock

_MOST_ENTRIES = 20_000
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def owner(root: Path) -> Finding:
    """Whether the directory is this user's, or can be made."""
    name = "data directory"
    if not root.exists():
        parent = existing(root)
        if not parent.is_dir():
            return problem(name, f"{parent} is not a directory", "choose another --data")
        if not os.access(parent, os.W_OK | os.X_OK):
            return problem(
                name, f"{root} cannot be made in {parent}", "choose another --data, or let this user write there"
            )
        return ok(name, f"{root} will be made at the first start")
    if not root.is_dir():
        return problem(name, f"{root} is not a directory", "choose another --data")
    found = root.stat()
    if found.st_uid != os.geteuid():
        whose = f"{root} is user {found.st_uid}'s, and this is user {os.geteuid()}"
        return problem(name, whose, "run as that user, or choose another --data", facts={"owner": found.st_uid})
    if found.st_mode & stat.S_ISVTX:
        return problem(name, f"{root} is a shared directory", "choose a directory of its own as --data")
    if not os.access(root, os.R_OK | os.W_OK | os.X_OK):
        return problem(name, f"{root} cannot be read and written", f"chmod 700 {quote(str(root))}")
    return ok(name, str(root))


def permissions(root: Path) -> Iterator[Finding]:
    """Who else can read what is there. Looks at the first entries only, where there are very many."""
    name = "permissions"
    if not root.is_dir():
        yield ok(name, "nothing is there yet; directories will have mode 0700, and files 0600")
        return
    closed = not root.stat().st_mode & _OTHERS
    entries = _entries(root)
    opened = [path for path, found in entries if not stat.S_ISLNK(found.st_mode) and found.st_mode & _OTHERS]
    foreign = [path for path, found in entries if found.st_uid != os.geteuid()]
    if foreign:
        some = f"{len(foreign)} of {len(entries)} entries are another user's, as {foreign[0]}"
        yield problem(name, some, f"chown -R {os.geteuid()} {quote(str(root))}; Agentmem must not run as two users")
    shut = f"chmod -R go-rwx {quote(str(root))}"
    if not closed:
        mode = f"{stat.S_IMODE(root.stat().st_mode):04o}"
        yield problem(
            name, f"{root} has mode {mode}: others may look into agents' memories", shut, facts={"mode": mode}
        )
    elif opened:
        many = f"{len(opened)} of {len(entries)} entries are open to others, as {opened[0]}; the directory is closed"
        yield warning(name, many, shut, facts={"open_entries": len(opened)})
    elif not foreign:
        yield ok(name, f"{root} is this user's alone, with all {len(entries)} entries in it")


def held(root: Path, serving: bool) -> bool:
    """Whether a store has the directory. `serving` says that one answers at its socket, which is asked first."""
    return serving or directory_lock.is_held(root)


def _entries(root: Path) -> list[tuple[Path, os.stat_result]]:
    """What is below `root`, breadth first, so that directories come before their many files; and its status."""
    found: list[tuple[Path, os.stat_result]] = []
    folders = [root]
    for folder in folders:
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    status = entry.stat(follow_symlinks=False)
                    found.append((Path(entry.path), status))
                    if stat.S_ISDIR(status.st_mode):
                        folders.append(Path(entry.path))
                    if len(found) >= _MOST_ENTRIES:
                        return found
        except (FileNotFoundError, PermissionError):  # a running store moves files; what is closed to us is told above
            continue
    return found
