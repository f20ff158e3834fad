"""A store with files of KV on a disk, an agent in it, and its export and import."""

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import mlx.core as mx
import numpy as np
from prometheus_client import CollectorRegistry

from agentmem.kv.blockfile import BlockHeader, FileName
from agentmem.kv.ledger import NO_VERSION, Ledger, TurnPlace, Version
from agentmem.v1 import cache_store_pb2 as pb
from agentmem.validation import AgentKey
from inference_service.engine.geometry import Geometry, LayerGroup, StateArray, StateGroup
from inference_service.engine.quantization import FOUR_BITS
from inference_service.memory.checkpoints import checkpoint_headers
from inference_service.memory.restore import headers
from inference_service.memory.speeds import Speeds
from inference_service.metrics import WorkerMetrics
from inference_service.portable.exporting import Exporter
from inference_service.portable.format import Manifest, Parts
from inference_service.portable.importing import Importer, Received
from inference_service.storage import transport
from inference_service.storage.blocks import NUMPY_DTYPE, write_block
from inference_service.storage.client import Opened
from inference_service.turns.restoring import Restorer

KEY = AgentKey("ns", "a", "m")
PLAIN = Geometry(4, mx.float32, FOUR_BITS, LayerGroup((0, 1), 2, 64, 128))
HYBRID = Geometry(4, mx.float32, FOUR_BITS, LayerGroup((1, 3), 2, 64, 128), LayerGroup((0, 2), 1, 64, 64, window=64))
STATES = StateGroup((2, 5), ((StateArray((3, 4), "F32"), StateArray((2,), "U32")),) * 2)
RECURRENT = Geometry(4, mx.float32, FOUR_BITS, LayerGroup((1, 3), 2, 64, 128), None, STATES)
BOTH = replace(RECURRENT, sliding=LayerGroup((0, 4), 1, 64, 64, window=64))
TOKENS = 600
TURNS = (TurnPlace(300, 1), TurnPlace(TOKENS, 2))


def ledger() -> Ledger:
    """Return one whose tokens stand for one byte each."""
    ids = [(7 * token) % 251 for token in range(TOKENS)]
    made = Ledger().followed_by(ids, [bytes([token]) for token in ids], "tokenizer")
    return replace(made, turns=TURNS, opening_bytes=5, template_time="2026-03-01T09:30:00+01:00")


def model(geometry: Geometry, **changes: Any) -> Any:
    fields = {"model_id": "m", "fingerprint": "print", "model_fingerprint": "model", "calibration": None}
    return SimpleNamespace(**fields | {"geometry": geometry, **changes})


def numbers(geometry: Geometry, header: BlockHeader, seed: int) -> dict[str, bytes]:
    """Return random tensors of a file; all are finite."""
    rng = np.random.default_rng(seed)
    shapes = geometry.checkpoint_shapes if header.window else geometry.block_shapes
    return {
        name: rng.integers(0, 1 << 20, shape).astype(NUMPY_DTYPE[dtype]).tobytes()
        for name, (dtype, shape) in shapes(header.token_count).items()
    }


@dataclass
class Disk:
    """A store's files, as its client sees them. Those in `remote` are on no disk."""

    root: Path
    geometry: Geometry
    ledger: Ledger | None = field(default_factory=ledger)
    files: dict[FileName, pb.StoredFile] = field(default_factory=dict)
    remote: set[FileName] = field(default_factory=set)
    quarantined: list[FileName] = field(default_factory=list)
    references: list[FileName] = field(default_factory=list)
    created: Ledger | None = None
    staged: int = 0

    def put(self, header: BlockHeader) -> FileName:
        name = FileName.of(header)
        path = str(self.root / f"{name.kind}-{name.chain_hash.hex()}")
        tensors = numbers(self.geometry, header, len(self.files))
        digest, size = write_block(path, header, tensors, self.geometry)
        self.files[name] = transport.described(path, header, digest, size, b"")
        return name

    async def open(self, key: AgentKey, block_hashes: Any = (), window_hashes: Any = (), peek: bool = False) -> Opened:
        assert peek
        if key.agent_id:
            return Opened(NO_VERSION if self.ledger is None else Version("u", 2), self.ledger)
        kinds = [FileName.block, *block_hashes], [FileName.window, *window_hashes]
        return Opened(NO_VERSION, None, *({h: f for h in hashes if (f := self._file(of(h)))} for of, *hashes in kinds))

    def _file(self, name: FileName) -> pb.StoredFile | None:
        file = self.files.get(name)
        if file is not None and name in self.remote:
            file = pb.StoredFile(first_token=file.first_token, token_count=file.token_count)
        return file

    async def stage(self, namespace: str, names: Iterable[FileName]) -> Mapping[FileName, str]:
        assert namespace == KEY.namespace
        self.staged += 1
        return {name: str(self.root / f"staged {self.staged}") for name in names if name not in self.files}

    async def publish(self, key: AgentKey, version: Version, files: Any, references: Any, fingerprint: str) -> None:
        assert fingerprint == "print"
        for file in files:
            name = FileName.from_proto(file)
            path = self.root / f"{name.kind}-{name.chain_hash.hex()}"
            Path(file.path).rename(path)
            self.files[name] = pb.StoredFile(path=str(path), digest=file.digest)
        self.references += references

    async def create_agent(self, key: AgentKey, ledger: Ledger, policy: object) -> Version:
        self.created = ledger
        return Version("u", 2)

    async def quarantine(self, namespace: str, name: FileName, digest: bytes, reason: str) -> None:
        self.quarantined.append(name)


def disk(root: Path, geometry: Geometry = PLAIN, windows: dict[int, int] | None = None) -> Disk:
    """Return blocks of all tokens, and windows by position."""
    made, tokens = Disk(root, geometry), ledger().token_ids
    for header in (*headers("print", "ns", tokens), *checkpoint_headers("print", "ns", tokens, windows or {})):
        made.put(header)
    return made


async def exported(disk: Disk) -> bytes:
    restorer = Restorer(cast(Any, disk), WorkerMetrics(CollectorRegistry()), 1, Speeds())
    export = await Exporter(cast(Any, disk), restorer).collect(KEY, model(disk.geometry))
    return b"".join([chunk async for chunk in export.chunks()])


async def pieces(data: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def received(data: bytes, into: Disk, size: int = 5000, geometry: Geometry | None = None) -> Received:
    parts = Parts(pieces(data, size))
    return await Importer(cast(Any, into)).receive(parts, await parts.manifest(), geometry or into.geometry)


async def imported(data: bytes, root: Path, geometry: Geometry) -> Disk:
    root.mkdir()
    into = Disk(root, geometry, None)
    await Importer(cast(Any, into)).create(KEY, model(geometry), await received(data, into))
    return into


async def parts_of(data: bytes) -> tuple[Manifest, list[pb.StoredFile], list[bytes]]:
    """Return what a file says, its files of KV, and their bytes."""
    parts = Parts(pieces(data, 1 << 16))
    manifest, files, contents = await parts.manifest(), [], []
    while (part := await parts.part()).HasField("file"):
        files.append(part.file)
        contents.append(await parts.take(part.file.size_bytes))
    return manifest, files, contents


def kv_end(files: Iterable[pb.StoredFile], geometry: Geometry) -> int:
    """Return how many tokens of KV can be gone on from."""
    kind = pb.FILE_KIND_BLOCK if geometry.resumes_anywhere else pb.FILE_KIND_WINDOW
    return max((file.first_token + file.token_count for file in files if file.kind == kind), default=0)
