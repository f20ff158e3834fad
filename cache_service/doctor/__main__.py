"""`python -m cache_service.doctor`: the checks of the store, a line for each finding."""

import os
import sys
from functools import partial
from pathlib import Path

from agentmem.checkup import Check, Findings, State, listens, problem, tell
from agentmem.datadir import ForeignDirectory, refuse_foreign
from agentmem.settings import SettingsError, load
from cache_service.doctor import database, directory, file_system, room, speed
from cache_service.settings import StoreSettings


def checks(settings: StoreSettings) -> list[Check]:
    """The checks of a directory that a store can use. They write nothing that has a name."""
    root = settings.data_directory
    serving = partial(listens, settings.address)
    return [
        ("permissions", partial(directory.permissions, root)),
        ("file system", partial(file_system.kind, root)),
        ("disk space", lambda: room.space(root, settings.limits, directory.held(root, serving()))),
        ("disk speed", partial(speed.measured, root, settings.free_bytes_floor)),
        ("database", lambda: database.looked_at(root, directory.held(root, serving()))),
    ]


def _usable(root: Path, usable: list[bool]) -> Findings:
    """Whether the directory can be a store's at all; `usable` gets the answer."""
    found = directory.owner(root)
    if found.state is State.OK:
        try:
            refuse_foreign(root)
        except ForeignDirectory as error:
            found = problem("data directory", str(error), "choose another --data; nothing there was touched")
    usable.append(found.state is State.OK)
    return [found]


def main() -> None:
    """Write the lines to standard output."""
    os.umask(0o077)
    try:
        settings = load(StoreSettings)
    except SettingsError as error:
        refused = problem(
            "store settings", str(error), "mend the setting that it names: a flag, AGENTMEM_… or the TOML"
        )
        tell([("store settings", lambda: [refused])], _write)
        return
    usable: list[bool] = []
    tell([("data directory", lambda: _usable(settings.data_directory, usable))], _write)
    if any(usable):  # of another directory nothing more is worth knowing
        tell(checks(settings), _write)


def _write(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
