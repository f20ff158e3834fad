"""Files that are damaged, forged or of another version: nothing of them is left, and what is wrong is said."""

import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from agentmem.errors import DataLoss, FailedPrecondition, ResourceExhausted
from agentmem.kv import blockfile
from agentmem.v1 import cache_store_pb2
from agentmem.v1 import portable_pb2 as pb
from inference_service.portable import format, importing
from inference_service.portable.format import BEGINNING, MAGIC, MAX_PART_BYTES, Parts, framed

from .disk import HYBRID, PLAIN, TOKENS, Disk, disk, exported, parts_of, pieces, received

File = tuple[cache_store_pb2.StoredFile, bytes]


@pytest.fixture
async def whole(tmp_path: Path) -> bytes:
    (tmp_path / "here").mkdir()
    return await exported(disk(tmp_path / "here", HYBRID, {TOKENS: 200}))


@pytest.fixture
def there(tmp_path: Path) -> Disk:
    (tmp_path / "there").mkdir()
    return Disk(tmp_path / "there", HYBRID, None)


async def forged(
    whole: bytes, change: Callable[[list[File]], object] = lambda files: None, head: dict[str, Any] | None = None
) -> bytes:
    """Return the file with other parts, whose checksums are right."""
    manifest, files, contents = await parts_of(whole)
    made = list(zip(files, contents, strict=True))
    change(made)
    first = manifest.to_proto()
    first.MergeFrom(pb.PortableHead(**head or {}))
    data = BEGINNING + framed(pb.PortablePart(head=first))
    for file, content in made:
        data += framed(pb.PortablePart(file=file)) + content
    return data + framed(pb.PortablePart(end=pb.PortableEnd(files=len(made))))


@pytest.mark.parametrize("size", [100, 5000, 1 << 18, 1 << 30])
async def test_in_whatever_pieces(whole: bytes, there: Disk, size: int) -> None:
    assert len((await received(whole, there, size)).names) == 4
    assert await forged(whole) == whole


async def test_truncations_and_additions(whole: bytes, there: Disk) -> None:
    for end in (0, 1, 15, 16, 17, 40, len(whole) // 2, len(whole) - 1):
        with pytest.raises(DataLoss, match="too early"):
            await received(whole[:end], there)
    with pytest.raises(DataLoss, match="behind its end"):
        await received(whole + b"\0", there)
    assert not list(there.root.iterdir())


async def test_seeded_damage(whole: bytes, there: Disk) -> None:
    rng = random.Random(11)
    for number in range(150):
        bad = bytearray(whole)
        at = rng.randrange(8000) if number % 2 else rng.randrange(len(bad))
        bad[at : at + 1] = rng.randbytes(1) if number % 3 else bytes([bad[at] ^ 1])
        if bad != whole:
            with pytest.raises((DataLoss, FailedPrecondition)):
                await received(bytes(bad), there)
    assert not list(there.root.iterdir())


def _other_tokens(files: list[File]) -> None:
    files[1] = files[1][0], files[0][1]


def _renamed(files: list[File]) -> None:
    files[1][0].chain_hash = bytes(32)


def _digest(files: list[File]) -> None:
    files[1] = files[1][0], files[1][1][:-1] + b"\xff"


def _not_finite(files: list[File]) -> None:
    file, content = files[1]
    _, specs = blockfile.parse(content, len(content))
    start = specs["k.scales"].start
    content = content[:start] + np.float32(np.nan).tobytes() + content[start + 4 :]
    file.digest = blockfile.digest(content)
    files[1] = file, content


def _wide(files: list[File]) -> None:
    files[-1][0].first_token, files[-1][0].token_count = 0, TOKENS


def _large(files: list[File]) -> None:
    files[0][0].size_bytes += 1 << 30


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda files: files.pop(0), "not in order"),
        (lambda files: files.reverse(), "not in order"),
        (lambda files: files.append(files[-1]), "not in order"),
        (_other_tokens, "another digest"),
        (_renamed, "not of its tokens"),
        (_digest, "another digest"),
        (_not_finite, "some numbers of k.scales are not finite"),
        (_wide, "a checkpoint that the model does not keep"),
        (_large, "too long"),
    ],
)
async def test_forged_files_of_kv_are_refused(
    whole: bytes, there: Disk, change: Callable[[list[File]], object], problem: str
) -> None:
    with pytest.raises(DataLoss, match=problem):
        await received(await forged(whole, change), there)
    assert not list(there.root.iterdir()) and not there.files


async def test_a_checkpoint_is_no_part_of_a_model_without(whole: bytes, there: Disk) -> None:
    with pytest.raises(DataLoss, match=r"another header|does not keep"):
        await received(whole, there, geometry=PLAIN)


@pytest.mark.parametrize(
    "head",
    [
        {"calibration": b"x"},
        {"context_policy": 99},
        {"ledger": {"template_time": "soon"}},
        {"key": {"agent_id": "x" * 999}},
    ],
)
async def test_forged_heads_are_refused(whole: bytes, there: Disk, head: dict[str, Any]) -> None:
    with pytest.raises(DataLoss, match="its head is not that"):
        await received(await forged(whole, head=head), there)


async def test_other_versions(there: Disk) -> None:
    for data, said in ((MAGIC + b"\5\0", "version 5"), (save({"x": np.zeros(1)}), "an older version")):
        with pytest.raises(FailedPrecondition, match=said):
            await received(data, there)
    for data in (b"not a file at all", bytes(100)):
        with pytest.raises(DataLoss, match="not an exported agent"):
            await received(data, there)


async def test_without_a_geometry_files_are_passed_over(whole: bytes, there: Disk) -> None:
    parts = Parts(pieces(whole, 5000))
    manifest = await parts.manifest()
    found = await importing.Importer(there).receive(parts, manifest, None)  # type: ignore[arg-type]
    assert (found.names, found.staged, there.staged) == ([], [], 0)


async def test_a_sender_that_never_stops_is_stopped(there: Disk) -> None:
    sent: list[int] = []

    async def endless(beginning: bytes) -> AsyncIterator[bytes]:
        yield beginning
        while True:
            sent.append(1 << 18)
            yield bytes(1 << 18)

    for size in (MAX_PART_BYTES, MAX_PART_BYTES + 1):
        sent.clear()
        with pytest.raises(DataLoss):
            await Parts(endless(BEGINNING + size.to_bytes(4, "little"))).manifest()
        assert sum(sent) <= MAX_PART_BYTES + (1 << 18)


async def test_a_disk_without_room(whole: bytes, there: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(importing, "write_new", full)
    with pytest.raises(ResourceExhausted):
        await received(whole, there)


def test_a_ledger_that_could_not_be_taken_back_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(format, "MAX_PART_BYTES", 100)
    with pytest.raises(FailedPrecondition, match="fork its first tokens"):
        framed(pb.PortablePart(head=pb.PortableHead(calibration=bytes(100))))
