"""Files that are read into blocks of the pool: as verified as those that are read into other memory."""

import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from agentmem.kv import blockfile
from agentmem.kv.blockfile import BlockHeader
from agentmem.v1.types_pb2 import MISS_REASON_ABSENT, MISS_REASON_CORRUPT, MISS_REASON_IO_ERROR
from inference_service.engine.geometry import HostBuffers
from inference_service.engine.paged.arena import Arena, HostArena
from inference_service.engine.paged.store import KVStore
from inference_service.storage import blocks as reading
from inference_service.storage.blocks import BlockMiss, read_block, read_into, write_block
from inference_service.storage.transport import nowhere, read_all
from tests.faults.mutations import BLOCK_FILE
from tests.inference_service.storage.stored import DAMAGE, GEOMETRY, World, held, stored

from .test_blocks import geometry, header, random_tensors

BLOCKS, GARBAGE = 4, 0xDEADBEEF
ONE = geometry(layers=3)
FAULTS = {"digest", "header", "truncated"}
SIZES = {name: len(tensor) for name, tensor in random_tensors(ONE, 5).items()}


class Blocks:
    """Blocks of a pool, with garbage, as others have left them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Arena, "of", staticmethod(HostArena))
        self.store = KVStore(GEOMETRY, BLOCKS, 0)
        assert isinstance(self.store.full, HostArena)
        self.words = [self.store.full.words(block) for block in range(BLOCKS)]
        for words in self.words:
            words[:] = GARBAGE

    def place(self, header: BlockHeader) -> int:
        """Not in their order."""
        return BLOCKS - 1 - header.first_token // 256

    def __call__(self, header: BlockHeader) -> HostBuffers | None:
        return self.store.host_buffers(self.place(header), header.token_count)

    def at(self, header: BlockHeader) -> dict[str, bytes]:
        return self.store.read_block(self.place(header), header.token_count)()

    def is_garbage_behind(self, header: BlockHeader) -> bool:
        layout = self.store.full.layout
        views = layout.views(self.words[self.place(header)])
        garbage = layout.views(np.full(layout.words, GARBAGE, np.uint32))
        return all(
            np.array_equal(view[:, :, header.token_count :], garbage[name][:, :, header.token_count :], equal_nan=True)
            for name, view in views.items()
        )


def block(views: HostBuffers) -> dict[str, bytes]:
    return {name: np.stack(each).tobytes() for name, each in views.items()}


async def test_each_to_its_place_and_nowhere_else(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    files, tensors = await stored(world)
    for order in ([0, 1, 2, 3], [2, 0, 1], [1, 3]):
        into = Blocks(monkeypatch)
        found = await read_all([files[n] for n in order], GEOMETRY, into)
        for n, each in zip(order, found, strict=True):
            assert not isinstance(each, BlockMiss)
            if n == 3:  # A window has memory of its own.
                assert held(each) == tensors[3]
            else:
                assert not each
                assert into.at(files[n][0]) == tensors[n]
                assert into.is_garbage_behind(files[n][0])
        others = {into.place(files[n][0]) for n in range(3) if n not in order} | {0}
        assert all((into.words[other] == GARBAGE).all() for other in others)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("damage", DAMAGE)
async def test_damage_anywhere_is_a_miss_of_that_file_alone(
    world: World, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], None], in_place: bool
) -> None:
    files, tensors = await stored(world)
    paths = [Path(file.path) for _, file in files]
    good = [path.read_bytes() for path in paths]
    for bad in ({0}, {1}, {2}, {3}, {0, 2}, {0, 1, 2, 3}):
        for n in bad:
            damage(paths[n])
        into = Blocks(monkeypatch)
        found = await read_all(files, GEOMETRY, into if in_place else nowhere)
        for n, each in enumerate(found):
            if n in bad:
                assert isinstance(each, BlockMiss)
                assert (each.reason, each.fault, each.damaged) == DAMAGE[damage]
            else:
                assert (into.at(files[n][0]) if in_place and n < 3 else held(each)) == tensors[n]
        for path, data in zip(paths, good, strict=True):
            path.write_bytes(data)


def memory(tokens: int) -> HostBuffers:
    return {
        name: [np.empty(shape[1:], reading.NUMPY_DTYPE[dtype]) for _ in range(shape[0])]
        for name, (dtype, shape) in ONE.block_shapes(tokens).items()
    }


def outcome(read: Callable[[], dict[str, bytes]]) -> dict[str, bytes] | tuple[int, str, bool]:
    try:
        return read()
    except BlockMiss as miss:
        return miss.reason, miss.fault, miss.damaged


def both(path: Path, digest: bytes, tokens: int) -> Sequence[dict[str, bytes] | tuple[int, str, bool]]:
    """Return both ways' outcomes for a file."""

    def into() -> dict[str, bytes]:
        views = memory(tokens)
        read_into(str(path), header(tokens), digest, ONE, views)
        return block(views)

    def whole() -> dict[str, bytes]:
        found = read_block(str(path), header(tokens), digest, ONE)
        return {name: tensor.tobytes() for name, tensor in found.items()}

    return outcome(into), outcome(whole)


@pytest.mark.parametrize("piece", [1, 5000, 1 << 20])
def test_in_whatever_pieces_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    """Pieces of one layer, of some, of a whole tensor."""
    monkeypatch.setattr(reading, "_PIECE", piece)
    monkeypatch.setattr(reading, "_HASHED", piece)
    path, tensors = tmp_path / "block.safetensors", random_tensors(ONE, 60, 1)
    digest, _ = write_block(str(path), header(60), tensors, ONE)
    if piece > 1:
        assert both(path, digest, 60) == (tensors, tensors)
    views = memory(60)
    read_into(str(path), header(60), digest, ONE, views)
    assert block(views) == tensors


def test_damage_is_refused(tmp_path: Path) -> None:
    """Whoever the digest is from: as the disk has it, and as a writer with a bug. Both ways of reading say the same."""
    paths = [tmp_path / f"{seed}.safetensors" for seed in range(2)]
    for seed, each in enumerate(paths):
        write_block(str(each), header(5, first=256 * seed), random_tensors(ONE, 5, seed), ONE)
    data, other = (each.read_bytes() for each in paths)
    path, read = tmp_path / "block.safetensors", 0
    for seed in range(300):
        rng = random.Random(seed)
        mutated = rng.choice(BLOCK_FILE)(rng, data, other)
        path.write_bytes(mutated)
        for digest in (blockfile.digest(data), blockfile.digest(mutated)):
            into, whole = both(path, digest, 5)
            assert into == whole, seed
            if isinstance(into, tuple):
                assert into[1] in FAULTS and into[2], seed
                continue
            assert mutated == data or digest == blockfile.digest(mutated), seed
            read += mutated != data  # other numbers in the same shapes: that is what the digest is for
            assert {name: len(tensor) for name, tensor in into.items()} == SIZES, seed
    assert 0 < read < 150


def test_every_byte_is_verified(tmp_path: Path) -> None:
    path = tmp_path / "block.safetensors"
    digest, size = write_block(str(path), header(1), random_tensors(ONE, 1, 0), ONE)
    data = path.read_bytes()
    for index in range(size):
        path.write_bytes(data[:index] + bytes([data[index] ^ 1 << index % 8]) + data[index + 1 :])
        assert both(path, digest, 1) == ((MISS_REASON_CORRUPT, "digest", True),) * 2, index
    with path.open("r+b") as file:
        file.truncate(1 << 42)  # It is not read.
    assert both(path, digest, 1) == ((MISS_REASON_CORRUPT, "digest", True),) * 2


@pytest.mark.parametrize("name", ["nothing", "folder", "pipe", "link to folder", "link to pipe"])
def test_what_is_no_file_is_a_miss(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for linked in ("folder", "pipe"):
        (tmp_path / f"link to {linked}").symlink_to(tmp_path / linked)
    into, whole = both(tmp_path / name, bytes(16), 1)
    assert into == whole and isinstance(into, tuple)
    assert "pipe" in name or into[0] == (MISS_REASON_ABSENT if name == "nothing" else MISS_REASON_IO_ERROR)
