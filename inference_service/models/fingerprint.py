"""Fingerprints of a model's files, and of all that makes KV compatible."""

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
"""A file that changed later may change again without a new mtime: some file systems count in seconds."""


class ContentHashes:
    """Hashes cached in a JSON file. Not for concurrent use. Inode, size, mtime and ctime identify content: inodes are
    reused, and unpacking sets mtime.
    """

    def __init__(self, memory: Path) -> None:
        self._memory = JsonCache(memory)

    def of(self, path: Path) -> str:
        """Return xxh3_128 as hex. Raises OSError, and FailedPrecondition if the file changes."""
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
    described = {
        "format": FORMAT_VERSION,
        "model": model,
        **geometry.kinds,
        "bits": str(geometry.format),
        "group_size": geometry.format.group_size,
        "scheme": geometry.format.scheme,
        "calibration": calibration.digest if calibration else "",
    }
    return _digest(described)


def model_fingerprint(spec: ModelSpec, dtype: str, hashes: ContentHashes) -> str:
    """Name weights, config.json, adapter and `dtype`. Reads new files. Raises FailedPrecondition."""
    try:
        if len(spec.files) < 2:
            raise FileNotFoundError(f"{spec.directory} has no weights any more")
        files = [(path.name, hashes.of(path)) for path in spec.files]
        adapter = [(path.name, hashes.of(path)) for path in spec.adapter_files]
    except OSError as error:
        raise FailedPrecondition(f"the files of model {spec.model_id!r} cannot be read: {error}") from error
    return _digest({"files": sorted(files), "adapter": sorted(adapter), "dtype": dtype})


def file_identities(spec: ModelSpec) -> frozenset[tuple[str, str]]:
    """Return identities, which change with files. Raises FailedPrecondition."""
    try:
        return frozenset((path.name, identity(path.stat())) for path in spec.directory.iterdir())
    except OSError as error:
        raise FailedPrecondition(f"model {spec.model_id!r} cannot be loaded from {spec.directory}: {error}") from error


def identity(stat: os.stat_result) -> str:
    return f"{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ctime_ns}"


def _content_hash(file: BufferedReader) -> str:
    return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()
