"""Seeded damage of block files: each one ends in a refusal with a known reason, whoever the digest is from."""

import os
import random
from pathlib import Path

import pytest

from agentmem.kv import blockfile
from inference_service.storage.blocks import BlockMiss, read_block, write_block
from tests.faults.mutations import BLOCK_FILE

from .test_blocks import geometry, header, random_tensors

MUTATIONS = 300
FAULTS = {"digest", "header", "truncated"}
SHAPE = geometry(layers=1)


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    """Two blocks of one shape."""
    folder = tmp_path_factory.mktemp("blocks")
    paths = [folder / f"{seed}.safetensors" for seed in range(2)]
    for seed, path in enumerate(paths):
        write_block(str(path), header(5, first=256 * seed), random_tensors(SHAPE, 5, seed), SHAPE)
    one, two = (path.read_bytes() for path in paths)
    return one, two


def test_lies_are_refused_even_where_the_digest_is_theirs(originals: tuple[bytes, bytes], tmp_path: Path) -> None:
    """As a writer with a bug has it: what the header says is held against what is wanted."""
    data, other = originals
    path, original = tmp_path / "block.safetensors", tmp_path / "original.safetensors"
    original.write_bytes(data)
    start = blockfile.header_bytes(data)
    read = 0
    for seed in range(MUTATIONS):
        rng = random.Random(seed)
        mutated = rng.choice(BLOCK_FILE)(rng, data, other)
        path.write_bytes(mutated)
        fault = ""
        try:
            tensors = read_block(str(path), header(5), blockfile.digest(mutated), SHAPE)
        except BlockMiss as miss:
            fault = miss.fault
        if fault:
            assert fault in FAULTS, seed
            continue
        read += 1  # other numbers in the same shapes: that is what the digest is for
        _, specs = blockfile.parse(mutated, len(mutated))
        assert {name: spec.shape for name, spec in specs.items()} == {
            name: shape for name, (_, shape) in SHAPE.block_shapes(5).items()
        }
        assert sum(tensor.nbytes for tensor in tensors.values()) == len(data) - start
    assert 0 < read < MUTATIONS / 2


def test_a_file_that_has_grown_without_bounds_is_not_read(originals: tuple[bytes, bytes], tmp_path: Path) -> None:
    path = tmp_path / "block.safetensors"
    path.write_bytes(originals[0])
    os.truncate(path, 1 << 42)
    with pytest.raises(BlockMiss) as miss:
        read_block(str(path), header(5), blockfile.digest(originals[0]), SHAPE)
    assert miss.value.fault == "digest" and miss.value.damaged
