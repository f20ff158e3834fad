"""The data directory: where files are, who may read them, and when they are on the disk for certain.

    store.db                          ledgers and rows
    blocks/ab/<chain>.safetensors     published blocks, by the first byte of their chain hash
    windows/ab/<chain>.safetensors    published windows
    staging/                          files being written
    quarantine/                       files that failed verification, each with its reason
    lock                              held by the one store of this directory: directory_lock.py
    probe                             the present store's random name, for workers to see whether they share its disk

No name here comes from a caller's text: files are named by chain hashes in hex.
"""

import errno
import fcntl
import logging
import os
import re
import secrets
import stat
import sys
from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager, suppress
from enum import IntEnum
from pathlib import Path
from typing import IO, NamedTuple

from agentmem import datadir
from agentmem.datadir import ForeignDirectory
from agentmem.errors import Internal, ResourceExhausted, is_disk_full
from agentmem.logs import event
from cache_service.directory_lock import DirectoryLock
from cache_service.removal import Removal

log = logging.getLogger(__name__)

SUFFIX = ".safetensors"
_NOTE_SUFFIX = ".reason.json"
_WITNESS = re.compile("witness-[0-9a-f]{16}")


class Kind(IntEnum):
    """What a file holds; the numbers are those of agentmem.v1.FileKind."""

    BLOCK = 1
    WINDOW = 2


FOLDERS = {Kind.BLOCK: "blocks", Kind.WINDOW: "windows"}


class FileName(NamedTuple):
    """A file's name: its kind and chain hash."""

    kind: Kind
    chain_hash: bytes


class DirectoryUnusable(Exception):
    """The data directory is another store's, or not ours alone; the message says what to do."""


class DataDirectory:
    """Paths of one data directory. Directories have mode 0700 and files 0600, whatever the umask is."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.database = self.root / datadir.DATABASE
        self.staging = self.root / "staging"
        self.quarantine = self.root / "quarantine"
        self.removal = Removal()
        self._lock: DirectoryLock | None = None

    def acquire(self) -> None:
        """Take the directory for this process, and make it if it is not there; of one that is, nothing changes yet.

        Raises DirectoryUnusable, before anything is written where it holds something else.
        """
        try:
            datadir.refuse_foreign(self.root)
        except ForeignDirectory as error:
            raise DirectoryUnusable(str(error)) from error
        if not self.root.exists():
            self.root.parent.mkdir(parents=True, exist_ok=True)
            _make_private(self.root)
        elif not _is_private_to_us(self.root):
            raise DirectoryUnusable(f"{self.root} is not this user's alone; choose a directory of its own as --data")
        try:
            self._lock = DirectoryLock(self.root)
        except BlockingIOError as error:
            raise DirectoryUnusable(f"another store is using {self.root}; stop it, or choose another --data") from error

    def prepare(self) -> None:
        """Create what is missing, and close what is open to others. Call it when the directory was acquired."""
        for folder in (self.root, self.staging, self.quarantine, *(self.root / name for name in FOLDERS.values())):
            _make_private(folder)

    def release(self) -> None:
        """Let the directory go. May be called twice."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def path(self, name: FileName) -> Path:
        """Where a published file is."""
        return self.folder(name) / f"{name.chain_hash.hex()}{SUFFIX}"

    def folder(self, name: FileName) -> Path:
        """The directory of a published file."""
        return self.root / FOLDERS[name.kind] / name.chain_hash[:1].hex()

    def new_staging_path(self, name: FileName) -> Path:
        """A path in staging/ that nobody has been given before. Nothing is there."""
        return self.staging / f"{name.chain_hash.hex()}-{secrets.token_hex(8)}{SUFFIX}"

    def new_quarantine_name(self, name: FileName) -> str:
        """A file name for quarantine/ that is not taken."""
        return f"{FOLDERS[name.kind]}-{name.chain_hash.hex()}-{secrets.token_hex(4)}{SUFFIX}"

    def quarantine_paths(self, file: str) -> tuple[Path, Path]:
        """A quarantined file, and the note that says why."""
        return self.quarantine / file, self.quarantine / f"{file.removesuffix(SUFFIX)}{_NOTE_SUFFIX}"

    def is_staged(self, path: Path) -> bool:
        """Whether `path` is, when links are followed, a name directly in staging/."""
        return path.is_absolute() and path.parent.resolve() == self.staging.resolve() and path.name not in ("", "..")

    def place(self, staged: Path, name: FileName) -> None:
        """Move a staged file to its place; it is on the disk under its name when this returns.

        Whatever is there that no store makes goes to quarantine/, where it stays. Raises OSError; then it is not there.
        """
        folder = self.folder(name)
        if not folder.is_dir():
            if os.path.lexists(folder):
                self._set_aside(folder)
            _make_private(folder)
        target = self.path(name)
        if target.is_dir():
            self._set_aside(target)
        staged.replace(target)
        self.removal.needed(target)
        try:
            sync_directory(folder)
        except OSError:
            self.removal.remove([target])
            raise

    def has(self, name: FileName) -> bool:
        """Whether a published file is there, and a file."""
        try:
            return stat.S_ISREG(self.path(name).lstat().st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def _set_aside(self, path: Path) -> None:
        kept = self.quarantine / f"{path.parent.name}-{path.name}-{secrets.token_hex(4)}.stray"
        path.replace(kept)
        event(log, "moved aside what was in a file's place", logging.WARNING, path=str(path), now=str(kept))

    def remove(self, names: Iterable[FileName]) -> int:
        """Delete published files whose rows are gone; how many of them the disk has kept for now."""
        return self.removal.remove(map(self.path, names))

    def remove_quarantined(self, files: Iterable[str]) -> int:
        """Delete files in quarantine/ and their notes, likewise."""
        return self.removal.remove(path for file in files for path in self.quarantine_paths(file))

    def sweep_staging(self) -> int:
        """Delete all that workers have left in staging/; how many files. Nobody may be writing."""
        staged = [path for path in self.staging.iterdir() if is_disposable(path)]
        for path in staged:
            path.unlink()
        return len(staged)

    def quarantined(self) -> Iterator[tuple[Path, int]]:
        """All files in quarantine/ with their sizes, a note's bytes added to its file's."""
        for path in self.quarantine.glob(f"*{SUFFIX}"):
            _, note = self.quarantine_paths(path.name)
            yield path, sum(each.stat().st_size for each in (path, note) if each.exists())

    def sweep_quarantine(self, known: Set[str]) -> None:
        """Delete files of KV and notes in quarantine/, but for the files of these names and their notes."""
        kept = {path for file in known for path in self.quarantine_paths(file)}
        for path in self.quarantine.iterdir():
            if path not in kept and is_disposable(path):
                path.unlink()

    def published(self) -> Iterator[FileName]:
        """The names of all files in blocks/ and windows/, with a row or without."""
        for kind, folder in FOLDERS.items():
            for shelf in (self.root / folder).glob("??/"):
                for file in os.listdir(shelf):  # a path object for each would take most of the time
                    with suppress(ValueError):
                        if file.endswith(SUFFIX):
                            yield FileName(kind, bytes.fromhex(file.removesuffix(SUFFIX)))


def open_private(path: Path) -> IO[bytes]:
    """A new file with mode 0600, to be written. Raises OSError."""
    return open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600))


def is_disposable(path: Path) -> bool:
    """Whether what lies where only we put files can be ours: a regular file of KV, a note, or a worker's witness."""
    is_ours = path.name.endswith((SUFFIX, _NOTE_SUFFIX)) or _WITNESS.fullmatch(path.name)
    return bool(is_ours) and stat.S_ISREG(path.lstat().st_mode)


def write_private(path: Path, data: bytes) -> None:
    """Create a file with mode 0600 and this content."""
    with open_private(path) as file:
        file.write(data)


def open_regular(path: Path) -> int:
    """A descriptor of a regular file, never of what a link points to. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return descriptor


def sync(descriptor: int) -> None:
    """Bring a file's content to the disk itself; on macOS fsync alone stops at the drive's cache."""
    if sys.platform == "darwin":
        try:
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
        except OSError:
            os.fsync(descriptor)  # file systems without it, such as network shares
    else:
        os.fsync(descriptor)


def sync_directory(path: Path) -> None:
    """Bring a directory's names to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def size_of(folder: Path) -> int:
    """Bytes of the files directly in a directory."""
    total = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                total += entry.stat(follow_symlinks=False).st_size
            except FileNotFoundError:
                continue
    return total


@contextmanager
def disk_errors() -> Iterator[None]:
    """Raise ResourceExhausted where the disk or the user's quota is full, and Internal where the disk fails."""
    try:
        yield
    except OSError as error:
        if is_disk_full(error):
            raise ResourceExhausted("the cache store's disk is full", retry_after=5.0) from error
        event(log, "the disk fails", logging.ERROR, error=str(error))
        raise Internal(
            f"the cache store's disk fails ({error.strerror}); nothing that is needed is lost, but look at the disk and"
            " at the store's log"
        ) from error


def _make_private(folder: Path) -> None:
    created = not folder.is_dir()
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    if created:
        sync_directory(folder.parent)


def _is_private_to_us(folder: Path) -> bool:
    found = folder.stat()
    return found.st_uid == os.geteuid() and not found.st_mode & stat.S_ISVTX
