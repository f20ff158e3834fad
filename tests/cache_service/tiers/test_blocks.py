"""Staging and publishing: what becomes visible, what never does, and what is deleted when."""

import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentmem.kv import blockfile
from agentmem.v1 import cache_store_pb2 as pb
from agentmem.v1 import types_pb2
from cache_service.files import references
from tests.cache_service import kv
from tests.cache_service.conftest import Running, fails, wrong_field

BLOCK, WINDOW = pb.FILE_KIND_BLOCK, pb.FILE_KIND_WINDOW


def name(header: blockfile.BlockHeader, kind: pb.FileKind.ValueType = BLOCK) -> pb.FileName:
    return pb.FileName(kind=kind, chain_hash=header.chain_hash)


async def stage(store: Running, *names: pb.FileName, namespace: str = "default") -> list[pb.StagedFile]:
    return list((await store.cache.StageBlocks(pb.StageBlocksRequest(namespace=namespace, names=names))).files)


async def publish(
    store: Running,
    files: list[pb.StoredFile],
    version: types_pb2.AgentVersion | None = None,
    references: list[pb.FileName] | None = None,
    key: types_pb2.AgentKey | None = None,
    fingerprint: str = kv.FINGERPRINT,
) -> tuple[int, int]:
    response = await store.cache.PublishBlocks(
        pb.PublishBlocksRequest(
            key=key or kv.key(), version=version, files=files, references=references or [], fingerprint=fingerprint
        )
    )
    return response.published, response.dropped


async def found(store: Running, *names: pb.FileName, namespace: str = "default") -> list[pb.StoredFile]:
    response = await store.cache.OpenCache(
        pb.OpenCacheRequest(
            key=kv.key("", namespace=namespace),
            block_hashes=[name.chain_hash for name in names if name.kind == BLOCK],
            window_hashes=[name.chain_hash for name in names if name.kind == WINDOW],
        )
    )
    return list(response.files)


async def add(
    store: Running, tokens: list[int], version: types_pb2.AgentVersion | None = None, agent: str = "ada"
) -> pb.FileName:
    await hold(store, [kv.header(tokens)], version, kv.key(agent))
    return name(kv.header(tokens))


async def hold(
    store: Running,
    blocks: Sequence[blockfile.BlockHeader],
    version: types_pb2.AgentVersion | None = None,
    key: types_pb2.AgentKey | None = None,
) -> None:
    """Publish those of a state's blocks that don't exist; without a version they are nobody's."""
    key, headers = key or kv.key(), {header.chain_hash: header for header in blocks}
    names = [name(header) for header in blocks]
    files = [kv.write(file, headers[file.chain_hash]) for file in await stage(store, *names, namespace=key.namespace)]
    await publish(store, files, version, names if version else [], key)


def on_disk(data: Path) -> list[str]:
    return sorted(str(path.relative_to(data)) for path in data.rglob("*.safetensors"))


async def test_the_first_published_file_wins(store: Running) -> None:
    header = kv.header([1])
    one, two = await stage(store, name(header)), await stage(store, name(header))
    first, second = kv.write(one[0], header), kv.write(two[0], header)
    assert first.digest != second.digest
    assert await publish(store, [first]) == (1, 0)
    assert await publish(store, [second]) == (0, 1)
    assert [file.digest for file in await found(store, name(header))] == [first.digest]
    assert await publish(store, [first]) == (0, 1), "a retry"
    assert len(on_disk(store.data)) == 1


async def test_the_order_is_fsync_rename_fsync_of_the_directory_row(
    store: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    def recorded(step: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            steps.append(step)
            return function(*args, **kwargs)

        return call

    header = kv.header([1])
    names = [name(header), name(header, WINDOW)]
    files = [kv.write(staged, header) for staged in await stage(store, *names)]
    monkeypatch.setattr("cache_service.files.publication.sync", recorded("fsync", lambda _: None))
    monkeypatch.setattr(Path, "replace", recorded("rename", Path.replace))
    monkeypatch.setattr("cache_service.files.directory.sync_directory", recorded("fsync directory", lambda _: None))
    monkeypatch.setattr(references, "add", recorded("row", references.add))
    await publish(store, files)
    once = ["fsync", "fsync directory", "rename"]  # a directory is made
    assert steps == [*once, *once, "fsync directory", "fsync directory", "row", "row"]


async def test_a_path_elsewhere_is_refused_before_anything_is_done(store: Running) -> None:
    good, header = kv.header([1]), kv.header([2])
    one, two = await stage(store, name(good), name(header))
    files = [kv.write(one, good), kv.write(two, header)]
    outside = store.data.parent / "outside.safetensors"
    kv.copy(files[1].path, outside)
    for path in (str(outside), f"{store.data}/staging/../../outside.safetensors", "outside.safetensors", "", "/", "\0"):
        files[1].path = path
        assert await wrong_field(publish(store, files)) == "files[1].path"
    assert outside.exists() and not await found(store, name(good))


async def test_a_link_in_staging_is_not_followed(store: Running) -> None:
    header = kv.header([1])
    (staged,) = await stage(store, name(header))
    file = kv.write(staged, header)
    outside = store.data.parent / "outside.safetensors"
    Path(staged.path).rename(outside)
    os.symlink(outside, staged.path)
    await fails(publish(store, [file]), "DATA_LOSS")
    assert outside.exists() and on_disk(store.data) == []


def cut_short(file: pb.StoredFile, data: bytes) -> bytes:
    return data[:-1]


def told_another_size(file: pb.StoredFile, data: bytes) -> bytes:
    file.size_bytes += 1
    return data


def told_another_position(file: pb.StoredFile, data: bytes) -> bytes:
    file.first_token += 256
    return data


def told_another_count(file: pb.StoredFile, data: bytes) -> bytes:
    file.token_count -= 1
    return data


def header_of(**changes: Any) -> Callable[[pb.StoredFile, bytes], bytes]:
    def change(file: pb.StoredFile, data: bytes) -> bytes:
        return kv.content(replace(kv.header([1, 2]), **changes))

    return change


def raw(header: bytes) -> Callable[[pb.StoredFile, bytes], bytes]:
    def change(file: pb.StoredFile, data: bytes) -> bytes:
        data = struct.pack("<Q", len(header)) + header + bytes(100)
        file.size_bytes = len(data)
        return data

    return change


@pytest.mark.parametrize(
    "lie",
    [
        cut_short,
        told_another_size,
        told_another_position,
        told_another_count,
        header_of(namespace="other"),
        header_of(fingerprint="0" * 16),
        header_of(chain_hash=bytes(32)),
        header_of(first_token=1),
        header_of(parent=b"short"),
        raw(b"{}"),
        raw(b"[]"),
        raw(b"[" * 60_000),
        raw(b"\xff" * 8),
        lambda file, data: b"",
        lambda file, data: os.urandom(len(data)),
    ],
)
async def test_a_file_that_is_not_what_it_should_be_is_deleted_and_the_others_are_published(
    store: Running, lie: Callable[[pb.StoredFile, bytes], bytes]
) -> None:
    bad, good = kv.header([1, 2]), kv.header([3])
    one, two = await stage(store, name(bad), name(good))
    file = kv.write(one, bad)
    Path(file.path).write_bytes(lie(file, kv.content(bad)))
    assert bad.chain_hash.hex() in await fails(publish(store, [file, kv.write(two, good)]), "DATA_LOSS")
    assert [file.chain_hash for file in await found(store, name(bad), name(good))] == [good.chain_hash]
    assert len(on_disk(store.data)) == 1


async def test_another_namespaces_block_is_neither_served_nor_replaced(store: Running) -> None:
    block = await add(store, [1])
    assert not await found(store, block, namespace="other")
    await store.cache.QuarantineBlock(pb.QuarantineBlockRequest(namespace="other", name=block, reason="digest"))
    (staged,) = await stage(store, block, namespace="other")
    lie = replace(kv.header([1]), namespace="other")
    await fails(publish(store, [kv.write(staged, lie)], key=kv.key(namespace="other")), "DATA_LOSS")
    (file,) = await found(store, block)
    assert blockfile.digest(kv.read(file.path)) == file.digest


async def test_a_row_whose_file_has_vanished_is_staged_again(store: Running) -> None:
    block = await add(store, [1])
    Path((await found(store, block))[0].path).unlink()
    assert len(await stage(store, block)) == 1
    assert not await found(store, block)
    await add(store, [1])
    assert await found(store, block)


async def test_names_that_are_no_chain_hashes_are_refused(store: Running) -> None:
    for bad, field in (
        (pb.FileName(kind=BLOCK, chain_hash=b"../../etc/passwd"), "names[0].chain_hash"),
        (pb.FileName(chain_hash=bytes(32)), "names[0].kind"),
    ):
        assert await wrong_field(stage(store, bad)) == field
