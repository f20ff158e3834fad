"""Fingerprints: of a model, a name for the function that its files are; of KV, a name for all that makes it compatible.

Weight files are named by their content: two models of equal shape have equal indexes and sizes. Hashing is remembered,
so that a model of many gigabytes is read for it once.
"""

import hashlib
import json
import os
import time
from io import BufferedReader
from pathlib import Path
from typing import Any

import xxhash

from agentmem.errors import FailedPrecondition
from agentmem.kv.blockfile import FORMAT_VERSION
from inference_service.engine.calibration import Calibration
from inference_service.engine.geometry import Geometry
from inference_service.json_cache import JsonCache
from inference_service.models.opening import ModelSpec

SETTLED_SECONDS = 2.0
"""A file that was changed less long ago may change again without a new time: some file systems count in seconds."""


class ContentHashes:
    """Content hashes of files, remembered in one JSON file. Not for concurrent use.

    A file is still the one that was read if inode, size, mtime and ctime are the same. (The first three do not suffice:
    inodes are used again, and programs that unpack or copy files set their mtime.) What is remembered may be lost or
    damaged; then files are read again. Of files that are gone nothing is remembered.
    """

    def __init__(self, memory: Path) -> None:
        self._memory = JsonCache(memory)

    def of(self, path: Path) -> str:
        """xxh3_128 of the file's bytes, as hex. Raises OSError, and FailedPrecondition if it changes meanwhile."""
        name = str(path.resolve())
        present = identity(path.stat())
        match self._memory.get(name):
            case [str(known), str(content)] if known == present:
                return content
        now = time.time()
        with path.open("rb") as file:
            before = os.fstat(file.fileno())
            content = _content_hash(file)
            after = os.fstat(file.fileno())
        if not identity(before) == identity(after) == identity(path.stat()):
            raise FailedPrecondition(f"{path} changed while it was read; load the model again when it is all written")
        settled = now - max(before.st_mtime, before.st_ctime) >= SETTLED_SECONDS
        new = {name: (identity(before), content)} if settled else {}
        self._memory.update(
            lambda known: {other: known[other] for other in known if other != name and Path(other).exists()} | new
        )
        return content


def _digest(parts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def kv_fingerprint(model: str, geometry: Geometry, calibration: Calibration | None) -> str:
    """The fingerprint of KV: of a model by its fingerprint, packed so, and centred on such means."""
    described = {
        "format": FORMAT_VERSION,
        "model": model,
        "full": str(geometry.full),
        "sliding": str(geometry.sliding),
        "bits": str(geometry.format),
        "group_size": geometry.format.group_size,
        "scheme": geometry.format.scheme,
        "calibration": calibration.digest if calibration else "",
        **({"also_full": str(geometry.also_full)} if geometry.also_full else {}),
        **({"states": str(geometry.states)} if geometry.states else {}),
    }
    return _digest(described)


def model_fingerprint(spec: ModelSpec, dtype: str, hashes: ContentHashes) -> str:
    """The fingerprint of a model computed in `dtype`, by what is in its files now: weights, config.json and adapter.

    Reads those that are new, at the disk's speed; no MLX.

    Raises FailedPrecondition for files that cannot be read, also where the weights are gone: what is left does not name
    the model.
    """
    try:
        if len(spec.files) < 2:
            raise FileNotFoundError(f"{spec.directory} has no weights any more")
        files = [(path.name, hashes.of(path)) for path in spec.files]
        adapter = [(path.name, hashes.of(path)) for path in spec.adapter_files]
    except OSError as error:
        raise FailedPrecondition(f"the files of model {spec.model_id!r} cannot be read: {error}") from error
    return _digest({"files": sorted(files), "adapter": sorted(adapter), "dtype": dtype})


def file_identities(spec: ModelSpec) -> frozenset[tuple[str, str]]:
    """Name and identity of each file: others when one was replaced, changed or added. Raises FailedPrecondition."""
    try:
        return frozenset((path.name, identity(path.stat())) for path in spec.directory.iterdir())
    except OSError as error:
        raise FailedPrecondition(f"model {spec.model_id!r} cannot be loaded from {spec.directory}: {error}") from error


def identity(stat: os.stat_result) -> str:
    """Inode, size, mtime and ctime: they differ when a file was replaced or changed."""
    return f"{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ctime_ns}"


def _content_hash(file: BufferedReader) -> str:
    return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()
