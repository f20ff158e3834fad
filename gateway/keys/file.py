"""The file of keys on the disk: for its owner alone, replaced whole, changed by one program at a time."""

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from gateway.keys.format import Key, MalformedKeys, parse, render

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class KeyFileError(Exception):
    """The file cannot be used; the message names it and says what to do."""


class Identity(NamedTuple):
    """What differs once a file was changed or replaced."""

    device: int
    inode: int
    modified_ns: int
    size: int
    mode: int


def identity(found: os.stat_result) -> Identity:
    """The identity of a file, from its stat."""
    return Identity(found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size, found.st_mode)


def read(path: Path) -> tuple[dict[str, Key], Identity]:
    """The keys by id, and the identity of the file that has them. Raises KeyFileError."""
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            data = file.read()
    except FileNotFoundError:
        raise KeyFileError(f"{path} does not exist; `agentmem keys create --keys {path}` makes it") from None
    except OSError as error:
        raise KeyFileError(f"{path} cannot be read: {error.strerror}") from error
    if found.st_mode & _OTHERS:
        raise KeyFileError(f"{path} is open to others (mode {found.st_mode & 0o777:03o}); run: chmod 600 {path}")
    try:
        return parse(data.decode("utf-8")), identity(found)
    except UnicodeDecodeError:
        raise KeyFileError(f"{path} is not UTF-8") from None
    except MalformedKeys as error:
        raise KeyFileError(f"{path}: {error}") from None


@contextmanager
def changing(path: Path) -> Iterator[dict[str, Key]]:
    """The keys by id, to be changed in the block; written when it ends well. An absent file has none.

    Who else wants to change them waits. Readers see the keys of before or those of after. Raises KeyFileError.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise KeyFileError(f"{path.parent} cannot be written to: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        keys = read(path)[0] if path.exists() else {}
        yield keys
        _replace(path, render(keys.values()))
    finally:
        os.close(lock)


def _replace(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise KeyFileError(f"{path} cannot be written: {error.strerror}") from error
