import random
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentmem.errors import DataLoss, FailedPrecondition, ResourceExhausted
from inference_service.portable.format import Manifest
from inference_service.portable.header import MAX_HEADER_BYTES
from inference_service.portable.importing import Received, receive
from inference_service.portable.spool import Spool
from tests.inference_service.portable.files import File, file, recurrent


async def welcome(_: Manifest) -> None:
    """Everything is."""


async def pieces(data: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def take(data: bytes, directory: Path, size: int = 1000) -> Received:
    return await receive(pieces(data, size), Spool(directory), welcome)


def content(received: Received) -> bytes:
    return received.data.read(1 << 30, 0)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
@given(tokens=st.integers(0, 60), seed=st.integers(0, 9), size=st.integers(1, 70_000), data=st.data())
async def test_in_whatever_pieces(tmp_path: Path, tokens: int, seed: int, size: int, data: st.DataObject) -> None:
    made = file(tokens, data.draw(st.integers(0, tokens)), seed)
    received = await take(made.bytes, tmp_path, size)
    assert received.manifest == made.manifest
    assert content(received) == made.data
    received.data.close()


async def test_more_than_one_write(tmp_path: Path) -> None:
    made = file(60_000, 60_000)
    assert len(made.data) > 9 << 20
    received = await take(made.bytes, tmp_path, 256 * 1024)
    assert content(received) == made.data
    received.data.close()


async def test_truncations_and_additions(tmp_path: Path) -> None:
    made = file()
    whole = made.bytes
    header_size = len(whole) - len(made.data)
    for end in (0, 1, 7, 8, 9, header_size - 1, header_size, header_size + 1, len(whole) - 1):
        with pytest.raises(DataLoss):
            await take(whole[:end], tmp_path)
    with pytest.raises(DataLoss, match="behind its end"):
        await take(whole + b"\0", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("make", [file, recurrent])
async def test_every_flipped_bit_of_the_data(tmp_path: Path, make: Callable[..., File]) -> None:
    made = make(tokens=2, kv_tokens=1)
    whole = made.bytes
    for bit in range(8 * (len(whole) - len(made.data)), 8 * len(whole), 5):
        bad = bytearray(whole)
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DataLoss, match="checksum"):
            await take(bytes(bad), tmp_path)


@pytest.mark.slow
async def test_seeded_mutations(tmp_path: Path) -> None:
    rng = random.Random(11)
    made = file()
    whole = made.bytes
    for _ in range(600):
        bad = bytearray(whole)
        start = rng.choice([rng.randrange(8), rng.randrange(len(bad))])
        bad[start : start + rng.randint(0, 30)] = rng.randbytes(rng.randint(0, 30))
        try:
            received = await take(bytes(bad), tmp_path)
        except (DataLoss, FailedPrecondition):
            continue
        assert File(received.manifest, content(received)) == made
        received.data.close()


async def endless(beginning: bytes, sent: list[int]) -> AsyncIterator[bytes]:
    """A client that never stops."""
    yield beginning
    while True:
        sent.append(1 << 18)
        yield bytes(1 << 18)


async def test_a_sender_that_never_stops_is_stopped(tmp_path: Path) -> None:
    for beginning in (MAX_HEADER_BYTES.to_bytes(8, "little"), (1 << 60).to_bytes(8, "little"), file().bytes):
        sent: list[int] = []
        with pytest.raises(DataLoss):
            await receive(endless(beginning, sent), Spool(tmp_path), welcome)
        assert sum(sent) <= MAX_HEADER_BYTES + (1 << 18)


async def test_who_is_not_welcome_is_not_listened_to(tmp_path: Path) -> None:
    made, asked = file(60_000, 60_000), []

    async def refuse(manifest: Manifest) -> None:
        assert manifest == made.manifest
        raise FailedPrecondition("no")

    async def counted() -> AsyncIterator[bytes]:
        async for piece in pieces(made.bytes, 1 << 18):
            asked.append(len(piece))
            yield piece

    with pytest.raises(FailedPrecondition):
        await receive(counted(), Spool(tmp_path / "never"), refuse)
    assert sum(asked) < len(made.bytes) - len(made.data) + (1 << 18)
    assert not (tmp_path / "never").exists()


async def test_a_disk_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    with pytest.raises(ResourceExhausted):
        await take(file().bytes, tmp_path)
