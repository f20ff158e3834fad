"""Content hashes: remembered for exactly as long as a file is the same; and what a fingerprint of KV names."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import mlx.core as mx
import numpy as np
import pytest
import xxhash

from agentmem.errors import FailedPrecondition
from inference_service.engine.calibration import Calibration, LayerCalibration
from inference_service.engine.geometry import Geometry, LayerGroup
from inference_service.engine.quantization import PLAIN, KVFormat
from inference_service.models import fingerprint
from inference_service.models.fingerprint import ContentHashes


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(fingerprint, "SETTLED_SECONDS", 0.0)
    return tmp_path / "worker" / "weights.json"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"one")
    return path


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are read, in order."""
    names: list[str] = []
    content_hash = fingerprint._content_hash

    def noted(file: BinaryIO) -> str:
        names.append(Path(file.name).name)
        return content_hash(file)

    monkeypatch.setattr(fingerprint, "_content_hash", noted)
    return names


def hash_of(data: bytes) -> str:
    return xxhash.xxh3_128(data).hexdigest()


def test_a_file_is_read_once(memory: Path, path: Path, read: list[str], tmp_path: Path) -> None:
    link = tmp_path / "link.safetensors"
    link.symlink_to(path)
    hashes = ContentHashes(memory)
    assert hashes.of(path) == hashes.of(path) == hashes.of(link) == ContentHashes(memory).of(path) == hash_of(b"one")
    assert read == ["model.safetensors"]
    assert oct(memory.parent.stat().st_mode & 0o777) == "0o700"


def test_a_changed_file_is_read_again(memory: Path, path: Path) -> None:
    hashes = ContentHashes(memory)
    hashes.of(path)
    path.write_bytes(b"three")
    assert hashes.of(path) == ContentHashes(memory).of(path) == hash_of(b"three")


def test_another_file_of_the_same_size_and_time_is_noticed(memory: Path, path: Path) -> None:
    """As archives and downloads leave it, that set times: as a file of its own, or in the old one's place."""
    hashes = ContentHashes(memory)
    hashes.of(path)
    before = path.stat()
    times = before.st_atime_ns, before.st_mtime_ns
    other = path.with_name("other")
    other.write_bytes(b"two")
    os.utime(other, ns=times)
    other.replace(path)
    assert path.stat().st_mtime_ns == before.st_mtime_ns and path.stat().st_ino != before.st_ino
    assert hashes.of(path) == hash_of(b"two")
    inode = path.stat().st_ino
    path.write_bytes(b"six")
    os.utime(path, ns=times)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (inode, before.st_mtime_ns)
    assert hashes.of(path) == ContentHashes(memory).of(path) == hash_of(b"six")


@pytest.mark.parametrize("change", ["in place", "replaced", "gone"])
def test_a_file_that_changes_while_it_is_read_has_no_hash(
    memory: Path, path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    def changing(file: BinaryIO) -> str:
        if change == "in place":
            path.write_bytes(b"longer than before")
        elif change == "replaced":
            path.with_name("other").write_bytes(b"two")
            path.with_name("other").replace(path)
        else:
            path.unlink()
        return "of neither"

    with monkeypatch.context() as patch:
        patch.setattr(fingerprint, "_content_hash", changing)
        with pytest.raises((FailedPrecondition, FileNotFoundError)):
            ContentHashes(memory).of(path)
    assert not memory.exists()
    if change != "gone":
        assert ContentHashes(memory).of(path) == hash_of(path.read_bytes())


def test_a_file_that_was_changed_just_now_is_not_remembered(
    memory: Path, path: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may change once more within the resolution of its times."""
    monkeypatch.setattr(fingerprint, "SETTLED_SECONDS", 3600.0)
    hashes = ContentHashes(memory)
    assert hashes.of(path) == hashes.of(path) == hash_of(b"one")
    assert len(read) == 2
    assert json.loads(memory.read_text()) == {}


def test_files_that_are_gone_are_forgotten(memory: Path, path: Path, tmp_path: Path) -> None:
    hashes = ContentHashes(memory)
    for number in range(5):
        passing = tmp_path / f"{number}.safetensors"
        passing.write_bytes(b"x")
        hashes.of(passing)
        passing.unlink()
        path.write_bytes(b"x" * number)
        hashes.of(path)
    assert list(json.loads(memory.read_text())) == [str(path)], "one entry for each file that there is"


def test_a_crash_while_writing_leaves_what_was_there(
    memory: Path, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ContentHashes(memory).of(path)
    before = memory.read_text()
    other = tmp_path / "other.safetensors"
    other.write_bytes(b"two")

    def crash(self: Path, text: str) -> int:
        self.write_bytes(text.encode()[: len(text) // 2])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", crash)
        with pytest.raises(KeyboardInterrupt):
            ContentHashes(memory).of(other)
    assert memory.read_text() == before
    assert ContentHashes(memory).of(other) == hash_of(b"two")
    assert set(json.loads(memory.read_text())) == {str(path), str(other)}


def test_a_fingerprint_of_kv_names_all_that_it_depends_on() -> None:
    geometry = Geometry(4, mx.float32, KVFormat(), LayerGroup((0, 1), 2, 64, 64))
    means = [Calibration([LayerCalibration(*(np.full((2, 64), x, np.float16),) * 2)] * 2) for x in (0.0, 1.0)]
    first = fingerprint.kv_fingerprint("model", geometry, means[0])
    assert first == fingerprint.kv_fingerprint("model", replace(geometry), Calibration(means[0].layers))
    formats = [KVFormat(8, 8), KVFormat(5, 4), KVFormat(group_size=32), KVFormat(scheme=PLAIN)]
    others = [
        fingerprint.kv_fingerprint("another", geometry, means[0]),
        fingerprint.kv_fingerprint("model", geometry, means[1]),
        fingerprint.kv_fingerprint("model", geometry, None),
        fingerprint.kv_fingerprint("model", replace(geometry, full=LayerGroup((0, 1), 1, 64, 64)), means[0]),
        *(fingerprint.kv_fingerprint("model", replace(geometry, format=each), means[0]) for each in formats),
    ]
    assert len({first, *others}) == 1 + len(others)


def test_a_group_of_layers_is_named_as_ever() -> None:
    """KV in files is found by it."""
    named = "LayerGroup(layers=(1,), kv_heads=2, k_dim=64, v_dim=64, window=5)"
    assert str(LayerGroup((1,), 2, 64, 64, 5)) == named
