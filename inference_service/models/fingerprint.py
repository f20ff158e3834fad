"""The fingerprint: a name for all that makes KV compatible.

Weight files are named by their content: two models of equal shape have equal indexes and sizes. Hashing is remembered
by path, inode, size and mtime, so that a model of many gigabytes is read for it once.
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

import xxhash

from agentmem.blockfile import FORMAT_VERSION

_CHUNK = 1 << 20


class ContentHashes:
    """Content hashes of files, remembered in one JSON file. Not for concurrent use."""

    def __init__(self, memory: Path) -> None:
        self._memory = memory
        try:
            self._known: dict[str, str] = json.loads(memory.read_text())
        except (OSError, ValueError):
            self._known = {}

    def of(self, path: Path) -> str:
        """xxh3_128 of the file's bytes, as hex. Raises OSError."""
        stat = path.stat()
        identity = f"{path.resolve()}:{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}"
        if identity not in self._known:
            self._known[identity] = _content_hash(path)
            self._memory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._memory.write_text(json.dumps(self._known, indent=1))
        return self._known[identity]


def fingerprint(files: Iterable[tuple[str, str]], **parts: object) -> str:
    """Hash of (name, content hash) of the weight files and config, and of all else that changes KV, as hex."""
    described = {"format": FORMAT_VERSION, "files": sorted(files), **{k: str(v) for k, v in sorted(parts.items())}}
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()


def _content_hash(path: Path) -> str:
    hasher = xxhash.xxh3_128()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            hasher.update(chunk)
    return hasher.hexdigest()
