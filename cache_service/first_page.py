"""The first page of a database, as it was last committed, read without SQLite: opening a WAL would write beside it."""

from pathlib import Path
from typing import NamedTuple

_MAGIC = b"SQLite format 3\0"
_HEADER, _FRAME_HEADER = 32, 24
_SALTS = slice(16, 24)  # of the header of a WAL; a frame of an earlier use of the file has others at 8:16


class FirstPage(NamedTuple):
    """What the first page says: `PRAGMA user_version`, and whether there is any table."""

    user_version: int
    has_tables: bool


def read(path: Path) -> FirstPage | None:
    """The first page of the database at `path`; None if there is none, or it is not SQLite's. Raises OSError."""
    page = _in_wal(path.with_name(f"{path.name}-wal")) or _in_file(path)
    if not page.startswith(_MAGIC) or len(page) < 108:
        return None
    is_empty = page[100] == 0x0D and page[103:105] == bytes(2)  # a leaf without a cell
    return FirstPage(int.from_bytes(page[60:64], "big"), not is_empty)


def _in_file(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(512)
    except FileNotFoundError:
        return b""


def _in_wal(path: Path) -> bytes:
    """The page as the last transaction that changed it left it; empty if none did."""
    found = written = b""
    try:
        with open(path, "rb") as wal:
            header = wal.read(_HEADER)
            size = int.from_bytes(header[8:12], "big")
            while len(frame := wal.read(_FRAME_HEADER)) == _FRAME_HEADER and frame[8:16] == header[_SALTS]:
                page = wal.read(size)
                if len(page) < size:
                    break
                if frame[:4] == b"\0\0\0\1":
                    written = page
                if frame[4:8] != bytes(4):  # the transaction's last frame
                    found = written
    except FileNotFoundError:
        return b""
    return found
