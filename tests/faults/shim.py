"""The test's end of shim.c: building it, and the control file that both map."""

import ctypes
import errno
import mmap
import os
import shutil
import subprocess
import sys
from enum import IntEnum, IntFlag
from pathlib import Path

SOURCE = Path(__file__).with_name("shim.c")
SLOTS, NOTES, NOTE_BYTES = 1024, 256, 64
FOR_EVER = 2**31 - 1


class Kind(IntFlag):
    CREATE = 1
    WRITE = 2
    SYNC = 4
    RENAME = 8
    UNLINK = 16
    TRUNCATE = 32
    MKDIR = 64
    ALL = 127
    TAKES_SPACE = CREATE | WRITE | RENAME | MKDIR


VERBS = {
    "create": Kind.CREATE,
    **dict.fromkeys(("write", "pwrite", "writev", "pwritev"), Kind.WRITE),
    **dict.fromkeys(("fsync", "fdatasync"), Kind.SYNC),
    **dict.fromkeys(("rename", "link"), Kind.RENAME),
    **dict.fromkeys(("unlink", "rmdir"), Kind.UNLINK),
    **dict.fromkeys(("truncate", "ftruncate"), Kind.TRUNCATE),
    "mkdir": Kind.MKDIR,
}
"""The names of operations in notes."""


class Action(IntEnum):
    """The fate of an operation. To stop is to die there: the process waits for its SIGKILL."""

    NOTHING = 0
    STOP_BEFORE = 1
    STOP_AFTER = 2
    FAIL = 3
    SWALLOW = 4


class Slot(ctypes.Structure):
    """One directory's orders, and what has happened in it since it was armed."""

    _fields_ = (
        ("armed", ctypes.c_int32),
        ("action", ctypes.c_int32),
        ("first", ctypes.c_int32),
        ("last", ctypes.c_int32),
        ("error", ctypes.c_int32),
        ("kinds", ctypes.c_int32),
        ("part", ctypes.c_char * 64),
        ("count", ctypes.c_int32),
        ("stopped", ctypes.c_int32),
        ("hits", ctypes.c_int32),
        ("notes", (ctypes.c_char * NOTE_BYTES) * NOTES),
    )

    def arm(
        self,
        action: Action = Action.NOTHING,
        first: int = 1,
        last: int | None = None,
        *,
        error: int = errno.EIO,
        kinds: Kind = Kind.ALL,
        part: str = "",
    ) -> None:
        """From now on, take `action` for the operations from `first` to `last` (None: only `first`), counted from 1."""
        self.armed = 0
        self.action, self.first, self.last = action, first, first if last is None else last
        self.error, self.kinds, self.part = error, kinds, part.encode()
        self.count = self.stopped = self.hits = 0
        self.armed = 1

    def disarm(self) -> None:
        self.armed = 0

    def operations(self) -> list[str]:
        """Return operations since it was armed, in order: name and end of path."""
        return [
            bytes(note).split(b"\0", 1)[0].decode(errors="replace") for note in self.notes[: min(self.count, NOTES)]
        ]


class Control:
    """The control file. What happens in <base>/<n>/ is told to, and ordered by, `slots[n]`."""

    def __init__(self, path: Path, base: Path) -> None:
        self.base = base.resolve()
        self.path = path
        path.write_bytes(bytes(ctypes.sizeof(_Layout)))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._layout = _Layout.from_buffer(self._map)
        self._layout.base = os.fsencode(self.base)

    def __getitem__(self, number: int) -> Slot:
        slot: Slot = self._layout.slots[number]
        return slot

    def environment(self, library: Path) -> dict[str, str]:
        return {**os.environ, "LD_PRELOAD": str(library), "AGENTMEM_FAULTS": str(self.path)}


class _Layout(ctypes.Structure):
    _fields_ = (("base", ctypes.c_char * 256), ("slots", Slot * SLOTS))


def build(folder: Path) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if sys.platform != "linux" or compiler is None:
        raise Unbuildable("faults are injected by LD_PRELOAD, which needs Linux and a C compiler")
    library = folder / "shim.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True)
    return library


class Unbuildable(Exception):
    """There is no shim on this machine; the message says why."""
