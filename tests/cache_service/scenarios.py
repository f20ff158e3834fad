"""Calls of the store can be interrupted, each on a directory in which there is something to lose."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import grpc

from agentmem.kv.blockfile import BlockHeader
from agentmem.v1 import agent_pb2, agent_pb2_grpc, cache_store_pb2_grpc, types_pb2
from agentmem.v1 import cache_store_pb2 as pb
from cache_service.tiers.limits import DiskLimits

from . import kv

ROOMY = DiskLimits(1 << 40, 0)
OTHER = kv.key("bob", namespace="other")
ERASED = 987654321
"""A token whose digits are nowhere but in an agent that is deleted."""
SAID = b"said in a run" * 400
"""Bytes that only a deleted record has; more than a page has room for."""


class Store(Protocol):
    """A store that serves, in this process or in another."""

    @property
    def cache(self) -> cache_store_pb2_grpc.CacheStoreServiceAsyncStub: ...
    @property
    def agents(self) -> agent_pb2_grpc.AgentServiceAsyncStub: ...


Act = Callable[[Store], Awaitable[object]]


async def nothing(store: Store) -> None:
    """No preparation."""


@dataclass(frozen=True)
class Scenario:
    """One call. `again` is what its repetition may answer where it had been done; `act` None: the store's start.

    `room`: bytes that there are for KV besides the template's. `erases`: what is in no file afterwards.
    `strict`: where it fails, nothing has changed. `vanished`: the preparation makes a row whose file is gone, so that
    there is no right view before.
    """

    name: str
    act: Act | None
    prepare: Act = nothing
    again: grpc.StatusCode | None = None
    room: int | None = None
    flags: tuple[str, ...] = ()
    erases: bytes = b""
    strict: bool = True
    vanished: bool = False
    litter: Callable[[Path], None] = lambda data: None

    def limits(self, template: Path) -> DiskLimits:
        """The warm tier's limits; evictions go deep where there are any."""
        if self.room is None:
            return ROOMY
        used = sum(path.stat().st_size for path in template.rglob("*") if path.suffix in (".safetensors", ".json"))
        return DiskLimits(used + self.room, 0, 1.0, 0.3)


def chain(number: int) -> BlockHeader:
    return kv.header([number, 0])


def name(number: int, kind: pb.FileKind.ValueType = pb.FILE_KIND_BLOCK) -> pb.FileName:
    return pb.FileName(kind=kind, chain_hash=chain(number).chain_hash)


async def version(store: Store, key: types_pb2.AgentKey) -> types_pb2.AgentVersion:
    return (await store.cache.OpenCache(pb.OpenCacheRequest(key=key, peek=True))).version


async def commit(
    store: Store, agent: str, tokens: list[int], keep: int, base: types_pb2.AgentVersion | None, request: str
) -> types_pb2.AgentVersion:
    """A turn, retried under its name like a worker's."""
    turn = kv.turn(tokens, base, keep, kv.key(agent), request_id=request, request_digest=b"d")
    return (await store.cache.CommitTurn(turn)).version


async def hold(store: Store, key: types_pb2.AgentKey, blocks: Sequence[int], windows: Sequence[int] = ()) -> None:
    names = [*map(name, blocks), *(name(number, pb.FILE_KIND_WINDOW) for number in windows)]
    headers = {
        kv.header([n, 0], key.namespace).chain_hash: kv.header([n, 0], key.namespace) for n in (*blocks, *windows)
    }
    if key.namespace != "default":
        names = [pb.FileName(kind=pb.FILE_KIND_BLOCK, chain_hash=chain_hash) for chain_hash in headers]
    staged = (await store.cache.StageBlocks(pb.StageBlocksRequest(namespace=key.namespace, names=names))).files
    files = [kv.write(file, headers[file.chain_hash]) for file in staged]
    request = pb.PublishBlocksRequest(key=key, files=files, references=names, fingerprint=kv.FINGERPRINT)
    request.version.CopyFrom(await version(store, key))
    await store.cache.PublishBlocks(request)


async def furnish(store: Store) -> None:
    """Agents with branches, shared blocks, windows, a pin, a quarantined file, another namespace, a workflow."""
    state = await commit(store, "ada", [1, 2, 3, 4], 0, None, "ada 1")
    await hold(store, kv.key(), [1, 2])
    state = await commit(store, "ada", [5, 6], 4, state, "ada 2")
    await hold(store, kv.key(), [1, 2, 3], [3])
    await store.agents.CreateSnapshot(agent_pb2.CreateSnapshotRequest(key=kv.key(), name="named"))
    for number in range(3, 8):  # more rewritten turns than automatic snapshots are kept
        state = await commit(store, "ada", [10 * number, 10 * number + 1], 3, state, f"ada {number}")
        await hold(store, kv.key(), [1, number + 1])
    eve = kv.key("eve")
    await commit(store, "eve", [1, 2, 3], 0, None, "eve 1")
    await hold(store, eve, [1, 10, 11], [10])
    await store.cache.QuarantineBlock(pb.QuarantineBlockRequest(namespace="default", name=name(11), reason="digest"))
    await store.agents.PinAgent(agent_pb2.PinAgentRequest(key=eve, pinned=True))
    state = await commit(store, "mallory", [ERASED] * 30, 0, None, "mallory 1")
    await commit(store, "mallory", [ERASED], 20, state, "mallory 2")
    await hold(store, kv.key("mallory"), [1, 12, 13])
    await store.cache.CommitTurn(kv.turn([7, 8], agent=OTHER))
    await hold(store, OTHER, [1])
    await store.cache.PutWorkflowRecord(
        pb.PutWorkflowRecordRequest(record=workflow(0, b"one" + SAID), events=[b"begun", SAID])
    )


def workflow(base: int, payload: bytes) -> pb.WorkflowRecord:
    """A run's record, based on a version."""
    return pb.WorkflowRecord(
        namespace="default", workflow_id="w", version=base, payload=payload, summary=SAID[:1000] + payload[:3]
    )


async def append(store: Store) -> None:
    await commit(store, "ada", list(range(100, 400)), 5, await version_before(store, "ada", 7), "ada 8")


async def rewrite(store: Store) -> None:
    """A turn that drops tokens, so that the oldest automatic snapshot goes, with its segment and its file."""
    await commit(store, "ada", [81], 2, await version_before(store, "ada", 7), "ada 8")


async def version_before(store: Store, agent: str, number: int) -> types_pb2.AgentVersion:
    """The version that a turn was based on; when it is repeated, its request_id says enough."""
    present = await version(store, kv.key(agent))
    return present if present.version == number else types_pb2.AgentVersion(uid=present.uid, version=number)


async def create(store: Store) -> None:
    await commit(store, "new", [1, 2], 0, None, "new 1")


async def publish(store: Store) -> None:
    await hold(store, kv.key(), [1, 20, 21], [21])


async def evict(store: Store) -> None:
    await store.agents.EvictAgent(agent_pb2.EvictAgentRequest(key=kv.key(), tier=types_pb2.TIER_WARM))


async def fork(store: Store) -> None:
    await store.agents.ForkAgent(agent_pb2.ForkAgentRequest(key=kv.key(), new_agent_id="fork", keep_tokens=4))


async def delete(store: Store) -> None:
    await store.agents.DeleteAgent(agent_pb2.DeleteAgentRequest(key=kv.key("mallory")))


async def snapshot(store: Store) -> None:
    await store.agents.CreateSnapshot(agent_pb2.CreateSnapshotRequest(key=kv.key(), name="another"))


async def trim(store: Store) -> None:
    await store.agents.TrimAgent(agent_pb2.TrimAgentRequest(key=kv.key(), keep_tokens=2))


async def restore(store: Store) -> None:
    await store.agents.RestoreSnapshot(agent_pb2.RestoreSnapshotRequest(key=kv.key(), name="named"))


async def delete_snapshot(store: Store) -> None:
    await store.agents.DeleteSnapshot(agent_pb2.DeleteSnapshotRequest(key=kv.key(), name="named"))


async def quarantine(store: Store) -> None:
    await store.cache.QuarantineBlock(pb.QuarantineBlockRequest(namespace="default", name=name(10), reason="digest"))


async def record(store: Store) -> None:
    await store.cache.PutWorkflowRecord(
        pb.PutWorkflowRecordRequest(record=workflow(1, b"two"), events=[b"went on", SAID])
    )


async def delete_record(store: Store) -> None:
    await store.cache.DeleteWorkflowRecord(
        pb.DeleteWorkflowRecordRequest(namespace="default", workflow_id="w", version=1)
    )


async def stage_vanished(store: Store) -> None:
    """Asks for a place for a file whose row is there, and which is not."""
    await store.cache.StageBlocks(pb.StageBlocksRequest(namespace="default", names=[name(10)]))


async def lose_a_file(store: Store) -> None:
    found = await store.cache.OpenCache(
        pb.OpenCacheRequest(key=kv.key(""), block_hashes=[chain(10).chain_hash], peek=True)
    )
    Path(found.files[0].path).unlink()


def leave_litter(data: Path) -> None:
    """Leave a staged file, an orphan and a row without a file, as a crash may."""
    source = next((data / "blocks").rglob("*.safetensors"))
    shutil.copy(source, data / "staging" / "left.safetensors")
    orphan = kv.header([77, 7]).chain_hash
    (data / "blocks" / orphan[:1].hex()).mkdir(mode=0o700, exist_ok=True)
    shutil.copy(source, data / "blocks" / orphan[:1].hex() / f"{orphan.hex()}.safetensors")


def make_new(data: Path) -> None:
    """A directory in which no store has been."""
    shutil.rmtree(data)
    data.mkdir(mode=0o700)


_EXISTS, _ABSENT, _MOVED = grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.ABORTED

SCENARIOS = (
    Scenario("append", append),
    Scenario("append and checkpoint", append, flags=("checkpoint",)),
    Scenario("rewrite", rewrite),
    Scenario("create", create),
    Scenario("publish", publish),
    Scenario("publish and evict", publish, room=1000),
    Scenario("stage what vanished", stage_vanished, lose_a_file, vanished=True),
    Scenario("evict", evict),
    Scenario("fork", fork, again=_EXISTS),
    Scenario("delete", delete, again=_ABSENT, erases=str(ERASED).encode() * 2, strict=False),
    Scenario("snapshot", snapshot),
    Scenario("trim", trim),
    Scenario("restore", restore),
    Scenario("delete snapshot", delete_snapshot, again=_ABSENT, strict=False),
    Scenario("quarantine", quarantine),
    Scenario("workflow record", record, again=_MOVED),
    Scenario("delete workflow record", delete_record, again=_ABSENT, erases=SAID[:13], strict=False),
    Scenario("start", None, litter=leave_litter),
    Scenario("first start", None, litter=make_new),
)
