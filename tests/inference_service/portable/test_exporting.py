"""Exports of what a store has, whole or not; each file is taken in again, bit for bit."""

from dataclasses import replace
from pathlib import Path

import pytest

from agentmem.errors import NotFound
from agentmem.kv.blockfile import FileName
from agentmem.kv.ledger import Ledger
from inference_service.engine.geometry import Geometry
from inference_service.memory.restore import headers

from .disk import BOTH, HYBRID, KEY, PLAIN, RECURRENT, TOKENS, Disk, disk, exported, imported, kv_end, ledger, parts_of

HYBRIDS = pytest.mark.parametrize("geometry", [HYBRID, RECURRENT, BOTH], ids=["windows", "states", "both"])


def checkpoints(geometry: Geometry, *positions: int) -> dict[int, int]:
    """Return how many tokens checkpoints at these positions stand for."""
    return {position: min(position, 200) if geometry.sliding else position for position in positions}


async def moved(made: Disk, tmp_path: Path) -> int:
    """Export and import; return how many tokens of KV one can go on from there."""
    data = await exported(made)
    manifest, files, contents = await parts_of(data)
    assert (manifest.ledger, manifest.key) == (made.ledger, KEY)
    assert not any(file.path or file.token_ids for file in files)
    there = await imported(data, tmp_path / "there", made.geometry)
    assert there.created == made.ledger and not list(there.root.glob("staged *"))
    assert list(there.files) == there.references == [FileName.from_proto(file) for file in files]
    for name, content in zip(there.files, contents, strict=True):
        assert Path(there.files[name].path).read_bytes() == content == Path(made.files[name].path).read_bytes()
    return kv_end(files, made.geometry)


def harm(made: Disk, name: FileName, how: str) -> None:
    path = Path(made.files[name].path)
    match how:
        case "missing":
            del made.files[name]
        case "vanished":
            path.unlink()
        case "bad":
            path.write_bytes(path.read_bytes()[:-1] + b"\xff")
        case _:
            made.remote.add(name)


HARMS = pytest.mark.parametrize("how", ["missing", "vanished", "bad", "on no disk"])


@HARMS
@pytest.mark.parametrize(("at", "tokens"), [(0, 0), (1, 256), (2, 512), (3, TOKENS)])
async def test_a_block_that_is_no_good_ends_the_kv(tmp_path: Path, at: int, tokens: int, how: str) -> None:
    made = disk(tmp_path)
    copies = {name: Path(file.path).read_bytes() for name, file in made.files.items()}
    if at < 3:
        harm(made, list(made.files)[at], how)
    _, files, contents = await parts_of(await exported(made))
    assert kv_end(files, PLAIN) == tokens
    assert contents == list(copies.values())[:at]
    assert len(made.quarantined) == (at < 3 and how in ("vanished", "bad"))


@pytest.mark.parametrize("geometry", [PLAIN, HYBRID, RECURRENT, BOTH], ids=["plain", "windows", "states", "both"])
async def test_all_of_it_moves(tmp_path: Path, geometry: Geometry) -> None:
    windows = {} if geometry is PLAIN else checkpoints(geometry, 256, 300, TOKENS)
    assert await moved(disk(tmp_path, geometry, windows), tmp_path) == TOKENS


@HYBRIDS
@pytest.mark.parametrize("position", [570, 300, 256], ids=["before the last answer", "end of a turn", "end of a block"])
async def test_kv_ends_at_the_last_checkpoint(tmp_path: Path, geometry: Geometry, position: int) -> None:
    assert await moved(disk(tmp_path, geometry, checkpoints(geometry, position)), tmp_path) == position


@HYBRIDS
@HARMS
async def test_without_a_good_checkpoint_it_is_the_one_before(tmp_path: Path, geometry: Geometry, how: str) -> None:
    made = disk(tmp_path, geometry, checkpoints(geometry, 300, TOKENS))
    harm(made, list(made.files)[-1], how)
    _, files, _ = await parts_of(await exported(made))
    assert kv_end(files, geometry) == 300


@pytest.mark.parametrize(("geometry", "end"), [(HYBRID, TOKENS), (RECURRENT, 300), (BOTH, 300)])
@HARMS
async def test_blocks_that_end_early_leave_the_checkpoint_that_they_reach(
    tmp_path: Path, geometry: Geometry, end: int, how: str
) -> None:
    """A window can be cut, states cannot."""
    made = disk(
        tmp_path, geometry, {300: 200 if geometry.sliding else 300, TOKENS: 264 if geometry.sliding else TOKENS}
    )
    harm(made, list(made.files)[2], how)
    _, files, _ = await parts_of(await exported(made))
    assert kv_end(files, geometry) == end


@HYBRIDS
@pytest.mark.parametrize("position", [0, TOKENS])
async def test_what_nothing_can_go_on_from_is_a_ledger(tmp_path: Path, geometry: Geometry, position: int) -> None:
    made = disk(tmp_path, geometry, checkpoints(geometry, position) if position else {})
    harm(made, next(iter(made.files)), "missing")
    assert await moved(made, tmp_path) == 0


@HYBRIDS
async def test_a_block_that_ends_at_a_checkpoint_is_exported(tmp_path: Path, geometry: Geometry) -> None:
    """A cut answer left it: the ledger goes on."""
    made = disk(tmp_path, geometry, checkpoints(geometry, 570))
    del made.files[list(made.files)[2]]
    made.put(list(headers("print", "ns", ledger().token_ids[:570]))[-1])
    assert await moved(made, tmp_path) == 570


async def test_an_empty_ledger(tmp_path: Path) -> None:
    assert await moved(replace(disk(tmp_path), ledger=Ledger()), tmp_path) == 0


async def test_nobody(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        await exported(Disk(tmp_path, PLAIN, None))
