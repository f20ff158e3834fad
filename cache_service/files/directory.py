"""The data directory.

    store.db                          ledgers, and rows of what agents are
    warm.db                           rows of the files here, and whose they are
    blocks/ab/<chain>.safetensors     published blocks, by the first byte of their chain hash
    windows/ab/<chain>.safetensors    published windows
    staging/                          files being written
    lock                              held by the one store of this directory
    probe                             its random name, for workers to see whether they share its disk

No name here comes from a caller's text.
"""

import errno
import fcntl
import math
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from agentmem import layout
from agentmem.durable import sync_directory
from agentmem.kv.blockfile import FileKind, FileName
from agentmem.layout import ForeignDirectory
from cache_service.files.disk import Removal, open_private

SUFFIX = ".safetensors"
INSTANCE_BYTES = 32
_ABANDONED_SECONDS = 86400.0
"""Files of an import may be published hours after they were written."""


FOLDERS = {FileKind.BLOCK: "blocks", FileKind.WINDOW: "windows"}


class DirectoryUnusable(Exception):
    """The directory is another store's, or not ours alone."""


class DataDirectory:
    """Paths of one data directory, with modes 0700 and 0600."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.database = self.root / layout.DATABASE
        self.warm_database = self.root / layout.WARM_DATABASE
        self.staging = self.root / "staging"
        self.removal = Removal()
        self._lock: DirectoryLock | None = None

    def acquire(self) -> None:
        """Raises DirectoryUnusable before anything is written."""
        try:
            layout.refuse_foreign(self.root)
        except ForeignDirectory as error:
            raise DirectoryUnusable(str(error)) from error
        if not self.root.exists():
            self.root.parent.mkdir(parents=True, exist_ok=True)
            _make_private(self.root)
        elif (found := self.root.stat()).st_uid != os.geteuid() or found.st_mode & stat.S_ISVTX:
            raise DirectoryUnusable(f"{self.root} is not this user's alone; choose a directory of its own as --data")
        try:
            self._lock = DirectoryLock(self.root)
        except BlockingIOError as error:
            raise DirectoryUnusable(f"another store is using {self.root}; stop it, or choose another --data") from error

    def prepare(self) -> None:
        """Create what is missing, and close what is open to others."""
        for folder in (self.root, self.staging, *(self.root / name for name in FOLDERS.values())):
            _make_private(folder)
        shutil.rmtree(self.root / "quarantine", ignore_errors=True)  # of before 0.2

    def release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def path(self, name: FileName) -> Path:
        return self.folder(name) / f"{name.chain_hash.hex()}{SUFFIX}"

    def folder(self, name: FileName) -> Path:
        return self.root / FOLDERS[name.kind] / name.chain_hash[:1].hex()

    def new_staging_path(self, name: FileName) -> Path:
        return self.staging / f"{name.chain_hash.hex()}-{secrets.token_hex(8)}{SUFFIX}"

    def is_staged(self, path: Path) -> bool:
        """Return whether `path`, with links followed, is a name directly in staging/."""
        return path.is_absolute() and path.parent.resolve() == self.staging.resolve() and path.name not in ("", "..")

    def place(self, staged: Path, name: FileName) -> None:
        """Move a staged file to its place, durable after `sync`. Raises OSError; then it is not there."""
        if not (folder := self.folder(name)).is_dir():
            _make_private(folder)
        target = self.path(name)
        staged.replace(target)
        self.removal.needed(target)

    def sync(self, names: Iterable[FileName]) -> None:
        """One fsync for each directory."""
        for folder in {self.folder(name) for name in names}:
            sync_directory(folder)

    def has(self, name: FileName) -> bool:
        return self.path(name).is_file()

    def remove(self, names: Iterable[FileName]) -> int:
        """Return how many files the disk has kept."""
        return self.removal.remove(map(self.path, names))

    def sweep_staging(self) -> int:
        """No worker may be writing."""
        return _sweep(self.staging)

    def sweep_abandoned(self) -> int:
        """Delete staged files that nobody has written to for a day."""
        return _sweep(self.staging, time.time() - _ABANDONED_SECONDS)

    def published(self) -> Iterator[FileName]:
        for kind, folder in FOLDERS.items():
            for shelf in (self.root / folder).glob("??/"):
                for file in os.listdir(shelf):  # a path object for each takes longest
                    with suppress(ValueError):
                        if file.endswith(SUFFIX):
                            yield FileName(kind, bytes.fromhex(file.removesuffix(SUFFIX)))


class DirectoryLock:
    """A store's, or a command's."""

    def __init__(self, root: Path, *, creates: bool = True) -> None:
        """Raises BlockingIOError where another holds it."""
        self._held: int | None = None
        try:
            self._held = _opened(root / "lock", creates)
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            if not root.is_dir():
                raise
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._held is not None:
            os.close(self._held)
            self._held = None


class Probe:
    """This process's random name, and its file."""

    def __init__(self, directory: DataDirectory) -> None:
        self.instance = secrets.token_bytes(INSTANCE_BYTES)
        self.path = directory.root / "probe"

    def place(self) -> None:
        self.path.unlink(missing_ok=True)
        with open_private(self.path) as file:
            file.write(self.instance)


def is_disposable(path: Path) -> bool:
    """Return whether this is a regular file of ours."""
    return path.name.endswith(SUFFIX) and stat.S_ISREG(path.lstat().st_mode)


def _sweep(folder: Path, before: float = math.inf) -> int:
    swept = 0
    for path in folder.iterdir():
        with suppress(FileNotFoundError):  # published or removed meanwhile
            if is_disposable(path) and path.lstat().st_mtime < before:
                path.unlink()
                swept += 1
    return swept


def _make_private(folder: Path) -> None:
    created = not folder.is_dir()
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    if created:
        sync_directory(folder.parent)


def _opened(path: Path, creates: bool) -> int:
    """A read-only disk's is opened for reading, which is enough."""
    if creates:
        with suppress(PermissionError):
            try:
                return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            except OSError as error:
                if error.errno != errno.EROFS:
                    raise
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
