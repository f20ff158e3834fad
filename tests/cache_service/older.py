"""Data directories that older stores made: `scenarios.furnish`, run by the last commit of each schema of store.db.

Packed without what a start makes anew (sockets, `lock`, `probe`). Made in a checkout of that commit by a store that was
closed in order. They are never made again: a directory of before is what it was.
"""

import tarfile
from pathlib import Path
from typing import Final

SCHEMAS: Final = (1, 2, 3, 4)
"""Of store.db: 2 came with `b04ce36f`, 3 with `27df0baa`, 4 with warm.db, and 5 with `forked_uid`."""

_PACKED: Final = Path(__file__).with_name("older_directories")


def unpack(schema: int, data: Path) -> None:
    """Make the directory `data`, as a store of that schema left it, modes included."""
    data.mkdir(mode=0o700)
    with tarfile.open(_PACKED / f"schema-{schema}.tar.xz") as packed:
        packed.extractall(data, filter="data")
    for path in data.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    for folder in ("staging", "windows", "blocks", "quarantine"):
        (data / folder).mkdir(mode=0o700, exist_ok=True)
