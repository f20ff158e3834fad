"""Exports of what a store has, whole or not; each file is taken in again."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import mlx.core as mx
import numpy as np
import pytest

from agentmem.errors import NotFound
from agentmem.kv.blockfile import BlockHeader, FileName
from agentmem.kv.ledger import Ledger, TurnPlace, Version
from agentmem.v1 import cache_store_pb2, types_pb2
from agentmem.validation import AgentKey
from inference_service.engine.geometry import Geometry, LayerGroup, StateArray, StateGroup
from inference_service.engine.quantization import FOUR_BITS
from inference_service.memory.checkpoints import checkpoint_headers
from inference_service.memory.restore import headers
from inference_service.portable.exporting import Exporter
from inference_service.portable.format import Manifest, layers_of, state_tensors
from inference_service.portable.importing import Received, receive
from inference_service.portable.spool import Spool, read, read_states
from inference_service.storage.blocks import NUMPY_DTYPE
from inference_service.storage.client import Opened

from .files import block, ledger

KEY = AgentKey("ns", "a", "m")
PLAIN = Geometry(4, mx.float32, FOUR_BITS, LayerGroup((0, 1), 2, 64, 128))
HYBRID = Geometry(4, mx.float32, FOUR_BITS, LayerGroup((1, 3), 2, 64, 128), LayerGroup((0, 2), 1, 64, 64, window=64))
STATES = StateGroup((2, 5), ((StateArray((3, 4), "F32"), StateArray((2,), "U32")),) * 2)
RECURRENT = Geometry(4, mx.float32, FOUR_BITS, LayerGroup((1, 3), 2, 64, 128), None, STATES)
BOTH = replace(RECURRENT, sliding=LayerGroup((0, 4), 1, 64, 64, window=64))
WITH_STATES = pytest.mark.parametrize("geometry", [RECURRENT, BOTH], ids=["states", "windows and states"])
TOKENS = 600
TURNS = (TurnPlace(300, 1), TurnPlace(TOKENS, 2))


@dataclass
class Disk:
    """The store and the fetcher over files in memory; those in `bad` turn out to be bad when they are read.

    Those in `remote` are on no disk.
    """

    geometry: Geometry
    ledger: Ledger | None
    tensors: dict[FileName, dict[str, np.ndarray]] = field(default_factory=dict)
    headers: dict[FileName, BlockHeader] = field(default_factory=dict)
    bad: set[FileName] = field(default_factory=set)
    remote: set[FileName] = field(default_factory=set)
    reads: list[FileName] = field(default_factory=list)

    def put(self, header: BlockHeader) -> FileName:
        name = FileName.of(header)
        layers, heads, v = (2, 1, (8, 1)) if header.window else (2, 2, (16, 2))
        made = block(layers, heads, (8, 1), v, header.token_count, "F32", seed=len(self.tensors))
        if header.window:
            made = (made if self.geometry.sliding else {}) | self.states(header)
        self.tensors[name] = made
        self.headers[name] = header
        return name

    def states(self, header: BlockHeader) -> dict[str, np.ndarray]:
        """Those of a checkpoint: its position, everywhere."""
        shapes = self.geometry.states.shapes if self.geometry.states else {}
        position = header.first_token + header.token_count
        return {name: np.full(shape, position, NUMPY_DTYPE[dtype]) for name, (dtype, shape) in shapes.items()}

    async def open(self, key: AgentKey, block_hashes: Any = (), window_hashes: Any = (), peek: bool = False) -> Opened:
        assert peek
        if key.agent_id:
            return Opened(Version("u", 2), self.ledger)
        names = [*map(FileName.block, block_hashes), *map(FileName.window, window_hashes)]
        files = [
            cache_store_pb2.StoredFile(
                chain_hash=name.chain_hash,
                kind=name.kind,
                first_token=self.headers[name].first_token,
                token_count=self.headers[name].token_count,
                path="" if name in self.remote else "on disk",
            )
            for name in names
            if name in self.headers
        ]
        kinds = [{f.chain_hash: f for f in files if f.kind == kind} for kind in (1, 2)]
        return Opened(Version(), None, *kinds)

    async def read(self, geometry: Geometry, namespace: str, model_id: str, wanted: Sequence[Any]) -> Any:
        ((header, _),) = wanted
        name = FileName.of(header)
        self.reads.append(name)
        if name in self.bad:
            return {}, {name: types_pb2.MISS_REASON_CORRUPT}
        assert header == self.headers[name]
        return {name: self.tensors[name]}, {}


def disk(geometry: Geometry = PLAIN, windows: dict[int, int] | None = None) -> Disk:
    """Blocks of all tokens, and windows by position."""
    made = Disk(geometry, ledger(TOKENS, TURNS))
    assert made.ledger is not None
    for header in headers("print", "ns", made.ledger.token_ids):
        made.put(header)
    for header in checkpoint_headers("print", "ns", made.ledger.token_ids, windows or {}):
        made.put(header)
    return made


async def export(disk: Disk, directory: Path) -> Received:
    """The file, taken in again."""
    model = cast(
        Any, SimpleNamespace(geometry=disk.geometry, fingerprint="print", model_fingerprint="model", calibration=None)
    )
    exporter = Exporter(cast(Any, disk), cast(Any, disk), Spool(directory))
    exported = await exporter.collect(KEY, model)

    async def anything(_: Manifest) -> None:
        """Is welcome."""

    async def chunks() -> AsyncIterator[bytes]:
        async for chunk in exported.chunks():
            yield chunk

    received = await receive(chunks(), Spool(directory), anything)
    exported.data.close()
    assert received.manifest.ledger == disk.ledger
    assert received.manifest.key == KEY
    return received


def check_blocks(disk: Disk, received: Received) -> None:
    """All KV that the file has is that of the blocks."""
    manifest = received.manifest
    for name, header in disk.headers.items():
        tokens = min(header.token_count, manifest.kv_tokens - header.first_token)
        if header.window or tokens <= 0:
            continue
        layers = layers_of(disk.geometry, window=False)
        found = read(received.data, manifest.places, layers, header.first_token, tokens)
        assert found == {key: array[:, :, :tokens].tobytes() for key, array in disk.tensors[name].items()}


async def test_all_of_it(tmp_path: Path) -> None:
    made = disk()
    received = await export(made, tmp_path)
    assert (received.manifest.kv_tokens, received.manifest.first_positions) == (TOKENS, (0, 0))
    check_blocks(made, received)
    assert len(made.reads) == 3
    received.data.close()


@pytest.mark.parametrize(("at", "tokens"), [(0, 0), (1, 256), (2, 512)])
@pytest.mark.parametrize("how", ["missing", "bad"])
async def test_a_block_that_is_no_good_ends_the_kv(tmp_path: Path, at: int, tokens: int, how: str) -> None:
    made = disk()
    name = list(made.headers)[at]
    if how == "missing":
        del made.headers[name]
    else:
        made.bad.add(name)
    received = await export(made, tmp_path)
    assert received.manifest.kv_tokens == tokens
    check_blocks(made, received)
    received.data.close()


@pytest.mark.parametrize("geometry", [PLAIN, HYBRID, RECURRENT], ids=["plain", "windows", "states"])
async def test_what_is_on_no_disk_is_left_out_and_not_read(tmp_path: Path, geometry: Geometry) -> None:
    """To read it would count as a fault, and begin the file again."""
    made = disk(geometry, {} if geometry is PLAIN else checkpoints(geometry, 256, TOKENS))
    last = [name for name, header in made.headers.items() if header.window][-1:] or [list(made.headers)[1]]
    made.remote = set(last)
    received = await export(made, tmp_path)
    assert received.manifest.kv_tokens == 256
    check_blocks(made, received)
    assert made.remote.isdisjoint(made.reads) and len(made.reads) == len(set(made.reads))
    received.data.close()


async def test_a_window_at_the_end(tmp_path: Path) -> None:
    made = disk(HYBRID, {300: 64, TOKENS: 250})
    received = await export(made, tmp_path)
    assert (received.manifest.kv_tokens, received.manifest.first_positions) == (TOKENS, (350, 0, 350, 0))
    check_blocks(made, received)
    window = list(made.headers)[-1]
    found = read(received.data, received.manifest.places, {"": (0, 2)}, 350, 250)
    assert found == {key: array.tobytes() for key, array in made.tensors[window].items()}
    received.data.close()


async def test_a_bad_window_leaves_the_one_before(tmp_path: Path) -> None:
    made = disk(HYBRID, {300: 64, TOKENS: 64})
    made.bad.add(list(made.headers)[-1])
    received = await export(made, tmp_path)
    assert (received.manifest.kv_tokens, received.manifest.first_positions) == (300, (236, 0, 236, 0))
    check_blocks(made, received)
    received.data.close()


async def test_a_window_beyond_the_blocks_is_cut(tmp_path: Path) -> None:
    made = disk(HYBRID, {TOKENS: 64 + 200})
    made.bad.add(list(made.headers)[2])
    received = await export(made, tmp_path)
    assert (received.manifest.kv_tokens, received.manifest.first_positions) == (512, (336, 0, 336, 0))
    check_blocks(made, received)
    window = list(made.headers)[-1]
    found = read(received.data, received.manifest.places, {"": (0, 2)}, 336, 512 - 336)
    assert found == {key: array[:, :, : 512 - 336].tobytes() for key, array in made.tensors[window].items()}
    received.data.close()


@pytest.mark.parametrize("windows", [{}, {TOKENS: 64}])
async def test_a_hybrid_that_nothing_can_go_on_from(tmp_path: Path, windows: dict[int, int]) -> None:
    made = disk(HYBRID, windows)
    made.bad.add(list(made.headers)[2])
    received = await export(made, tmp_path)
    assert (received.manifest.kv_tokens, received.manifest.data_bytes) == (0, 0)
    received.data.close()


def check_states(disk: Disk, received: Received, position: int) -> None:
    """The states are those of this position, and are taken for those of no other."""
    manifest = received.manifest
    assert (manifest.kv_tokens, manifest.state_position) == (position, position)
    checkpoint = next(h for h in disk.headers.values() if h.window and h.first_token + h.token_count == position)
    found = read_states(received.data, manifest.places, state_tensors(disk.geometry))
    assert found == {name: array.tobytes() for name, array in disk.states(checkpoint).items()}


def checkpoints(geometry: Geometry, *positions: int) -> dict[int, int]:
    """How many tokens checkpoints at these positions stand for."""
    return {position: min(position, 200) if geometry.sliding else position for position in positions}


@WITH_STATES
async def test_states_at_the_end(tmp_path: Path, geometry: Geometry) -> None:
    made = disk(geometry, checkpoints(geometry, 256, 300, TOKENS))
    received = await export(made, tmp_path)
    check_blocks(made, received)
    check_states(made, received, TOKENS)
    first = TOKENS - 200 if geometry.sliding else 0
    assert {*received.manifest.first_positions} == {0, first}
    received.data.close()


@WITH_STATES
@pytest.mark.parametrize("position", [570, 300, 256], ids=["before the last answer", "end of a turn", "end of a block"])
async def test_kv_ends_at_the_last_checkpoint(tmp_path: Path, geometry: Geometry, position: int) -> None:
    made = disk(geometry, checkpoints(geometry, position))
    received = await export(made, tmp_path)
    check_blocks(made, received)
    check_states(made, received, position)
    received.data.close()


@WITH_STATES
@pytest.mark.parametrize("how", ["missing", "bad", "of another position"])
async def test_without_a_good_checkpoint_it_is_the_one_before(tmp_path: Path, geometry: Geometry, how: str) -> None:
    made = disk(geometry, checkpoints(geometry, 300, TOKENS))
    last = list(made.headers)[-1]
    match how:
        case "missing":
            del made.headers[last]
        case "bad":
            made.bad.add(last)
        case _:
            made.headers[last] = replace(made.headers[last], token_count=made.headers[last].token_count - 1)
    received = await export(made, tmp_path)
    check_blocks(made, received)
    check_states(made, received, 300)
    received.data.close()


@WITH_STATES
async def test_states_are_not_trimmed_to_the_blocks(tmp_path: Path, geometry: Geometry) -> None:
    made = disk(geometry, checkpoints(geometry, 300, TOKENS))
    made.bad.add(list(made.headers)[2])
    received = await export(made, tmp_path)
    check_states(made, received, 300)
    received.data.close()


@WITH_STATES
async def test_a_block_that_ends_at_a_checkpoint_is_exported_again(tmp_path: Path, geometry: Geometry) -> None:
    """An import of what ended there left it."""
    made = disk(geometry, checkpoints(geometry, 570))
    del made.headers[list(made.headers)[2]]
    assert made.ledger is not None
    made.put(list(headers("print", "ns", made.ledger.token_ids[:570]))[-1])
    received = await export(made, tmp_path)
    check_blocks(made, received)
    check_states(made, received, 570)
    received.data.close()


@WITH_STATES
async def test_without_states_there_is_a_ledger_of_version_2(tmp_path: Path, geometry: Geometry) -> None:
    for made in (disk(geometry), disk(geometry, checkpoints(geometry, TOKENS))):
        made.bad.add(next(iter(made.headers)))
        received = await export(made, tmp_path)
        manifest = received.manifest
        assert (manifest.kv_tokens, manifest.data_bytes, manifest.geometry.states) == (0, 0, ())
        received.data.close()


async def test_an_empty_ledger(tmp_path: Path) -> None:
    for geometry in (PLAIN, HYBRID, RECURRENT):
        received = await export(replace(disk(geometry), ledger=Ledger()), tmp_path)
        assert received.manifest.kv_tokens == 0
        received.data.close()


async def test_nobody(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        await export(Disk(PLAIN, None), tmp_path)
