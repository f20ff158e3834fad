"""Files that are read into the caches' own buffers: as verified as those that are read into other memory."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from inference_service.engine.preallocating import PreallocatedBuffers

from agentmem.kv import blockfile
from agentmem.kv.blockfile import BlockHeader
from inference_service.engine.geometry import HostBuffers
from inference_service.storage import blocks as reading
from inference_service.storage.blocks import BlockMiss, read_block, read_into, write_block
from inference_service.storage.transport import File
from tests.faults.mutations import BLOCK_FILE
from tests.inference_service.storage.stored import DAMAGE, GEOMETRY, KINDS, World, blocks, tensors_of, window

from .test_blocks import geometry, header, random_tensors

CAPACITY = 768
ONE = geometry(layers=3)


async def stored(world: World) -> list[File]:
    """Three blocks, the last a tail, and a window."""
    headers = [*blocks(), window()]
    for seed, each in enumerate(headers):
        await world.write("path", each, seed)
    return [(each, await world.find(each)) for each in headers]


def buffers() -> PreallocatedBuffers:
    """With garbage, as memory that others have left."""
    made = PreallocatedBuffers(GEOMETRY.block_shapes(CAPACITY), CAPACITY)
    for views in made.between(0, CAPACITY).values():
        for view in views:
            view.view(np.uint32)[...] = 0xDEADBEEF
    return made


def block(views: HostBuffers) -> dict[str, bytes]:
    return {name: np.stack(each).tobytes() for name, each in views.items()}


def at(into: PreallocatedBuffers, each: BlockHeader) -> dict[str, bytes]:
    return block(into.between(each.first_token, each.first_token + each.token_count))


def zeros_behind(into: PreallocatedBuffers, end: int) -> bool:
    return not any(view.any() for views in into.between(end, CAPACITY).values() for view in views)


@pytest.mark.parametrize("kind", KINDS)
async def test_each_to_its_place_and_zeros_behind(world: World, kind: str) -> None:
    files = await stored(world)
    for order in ([0, 1, 2, 3], [2, 0, 1], [1, 3]):
        into = buffers()
        found = await world.transport(kind).read_all([files[n] for n in order], GEOMETRY, into)
        for n, each in zip(order, found, strict=True):
            assert not isinstance(each, BlockMiss)
            if n == 3:  # A window has memory of its own.
                assert {name: tensor.tobytes() for name, tensor in each.items()} == tensors_of(window(), 3)
            else:
                assert not each
                assert at(into, files[n][0]) == tensors_of(files[n][0], n)
        last = max(header.first_token + header.token_count for header, _ in (files[n] for n in order if n < 3))
        assert zeros_behind(into, last)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", DAMAGE)
async def test_damage_anywhere_is_a_miss_of_that_file_alone(
    world: World, damage: Callable[[Path], None], kind: str
) -> None:
    files = await stored(world)
    paths = [Path(file.path) for _, file in files]
    good = [path.read_bytes() for path in paths]
    for bad in ({0}, {1}, {2}, {3}, {0, 2}, {0, 1, 2, 3}):
        for n in bad:
            damage(paths[n])
        into = buffers()
        found = await world.transport(kind).read_all(files, GEOMETRY, into)
        for n, each in enumerate(found):
            if n in bad:
                assert isinstance(each, BlockMiss)
                assert (each.reason, each.fault, each.damaged) == DAMAGE[damage]
            elif n < 3:
                assert at(into, files[n][0]) == tensors_of(files[n][0], n)
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
    """What both ways of reading say of a file."""

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
    """Those of a layer, of some, and of a whole tensor."""
    monkeypatch.setattr(reading, "_PIECE", piece)
    monkeypatch.setattr(reading, "_HASHED", piece)
    path, tensors = tmp_path / "block.safetensors", random_tensors(ONE, 60, 1)
    digest, _ = write_block(str(path), header(60), tensors, ONE)
    if piece > 1:
        assert both(path, digest, 60) == (tensors, tensors)
    views = memory(60)
    read_into(str(path), header(60), digest, ONE, views)
    assert block(views) == tensors


def test_damage_is_refused_as_elsewhere(tmp_path: Path) -> None:
    """Whoever the digest is from: both ways say the same, and have the same bytes where a file is good."""
    paths = [tmp_path / f"{seed}.safetensors" for seed in range(2)]
    for seed, each in enumerate(paths):
        write_block(str(each), header(5, first=256 * seed), random_tensors(ONE, 5, seed), ONE)
    data, other = (each.read_bytes() for each in paths)
    path, refused, read = tmp_path / "block.safetensors", 0, 0
    for seed in range(300):
        rng = random.Random(seed)
        mutated = rng.choice(BLOCK_FILE)(rng, data, other)
        path.write_bytes(mutated)
        for digest in (blockfile.digest(data), blockfile.digest(mutated)):
            into, whole = both(path, digest, 5)
            assert into == whole, seed
            refused, read = refused + isinstance(into, tuple), read + isinstance(into, dict)
        if mutated != data:
            assert isinstance(both(path, blockfile.digest(data), 5)[0], tuple), seed
    assert refused and read


def test_every_byte_is_verified(tmp_path: Path) -> None:
    path = tmp_path / "block.safetensors"
    digest, size = write_block(str(path), header(1), random_tensors(ONE, 1, 0), ONE)
    data = path.read_bytes()
    for index in range(size):
        path.write_bytes(data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :])
        into, whole = both(path, digest, 1)
        assert into == whole and isinstance(into, tuple), index


def test_what_is_no_file_is_a_miss(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    for name in ("nothing", "folder", "link"):
        into, whole = both(tmp_path / name, bytes(16), 1)
        assert into == whole and isinstance(into, tuple), name
