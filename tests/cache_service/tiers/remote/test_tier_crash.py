"""The remote tier over starts: what a crash leaves is caught up, what is erased stays erased, a place has one owner."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from click.testing import CliRunner

from agentmem.v1 import types_pb2
from cache_service.offline import commands
from cache_service.offline.check import check
from cache_service.tiers import replication
from cache_service.tiers.remote.contract import RemoteRefused
from tests import s3
from tests.cache_service import kv
from tests.cache_service.conftest import fails, running
from tests.cache_service.process import spawn
from tests.cache_service.tiers.test_blocks import on_disk
from tests.cache_service.tiers.test_warm import speak

from .tier import fetch, keys, look, remote, settings, settled, tiers, until

WARM, REMOTE = types_pb2.TIER_WARM, types_pb2.TIER_REMOTE


async def test_what_was_published_without_an_object_store_is_uploaded_when_there_is_one(
    data: Path, bucket: s3.Bucket
) -> None:
    async with running(data) as store:
        await speak(store, "ada", [1, 2])
    async with remote(data, bucket) as store:
        await settled(store)
        assert len(bucket.objects()) == 2
    async with running(data) as store:
        await speak(store, "bob", [3])
    async with remote(data, bucket) as store:
        await settled(store)
        assert len(keys(bucket, [1, 2, 3])) == 3


async def test_a_deletion_is_no_success_before_the_objects_are_gone(
    data: Path, bucket: s3.Bucket, proxy: s3.Proxy
) -> None:
    async with remote(data, bucket, proxy.address) as store:
        await speak(store, "ada", [1])
        await speak(store, "bob", [1, 2])  # block 1 is of ada's turn
        await settled(store)
        await store.delete()
        assert len(bucket.objects()) == 2
        await store.evict("bob")
        proxy.fault = lambda method, path: 503 if method in ("POST", "DELETE") else 0
        for _ in range(2):
            told = await fails(store.delete(kv.key("bob")), "UNAVAILABLE")
            assert "deleted here, but 2 of its objects" in told
        assert await tiers(store, 1, 2) == {}, "it is out of use at once"
        assert len(bucket.objects()) == 2
        proxy.fault = lambda method, path: 0
        await until(lambda: not bucket.objects())
        await settled(store)
        await fails(store.delete(kv.key("bob")), "NOT_FOUND")


async def test_repeating_a_deletion_that_was_not_finished_succeeds(
    data: Path, bucket: s3.Bucket, proxy: s3.Proxy
) -> None:
    async with remote(data, bucket, proxy.address) as store:
        await speak(store, "ada", [1])
        await settled(store)
        proxy.fault = lambda method, path: 503 if method in ("POST", "DELETE") else 0
        await fails(store.delete(), "UNAVAILABLE")
        failures = itertools.repeat(503, 2)  # the next attempt has to repeat itself, and succeeds
        proxy.fault = lambda method, path: next(failures, 0) if method in ("POST", "DELETE") else 0
        assert (await store.delete()).deleted == 0
        assert not bucket.objects()


async def test_nothing_of_an_agent_is_left_in_the_database_when_its_objects_are_gone(
    data: Path, bucket: s3.Bucket
) -> None:
    secret = "an agent with a telling name"
    async with remote(data, bucket) as store:
        await speak(store, secret, [1])
        await settled(store)
        await store.delete(kv.key(secret))
        await until(lambda: all(secret.encode() not in kv.read(path) for path in data.glob("store.db*")))


async def test_without_the_object_store_a_deletion_says_what_it_cannot_delete(data: Path, bucket: s3.Bucket) -> None:
    async with remote(data, bucket) as store:
        await speak(store, "ada", [1])
        await settled(store)
        await store.evict()
    async with running(data) as store:
        assert await tiers(store, 1) == {}
        assert "start the store with the --remote that it had" in await fails(store.delete(), "UNAVAILABLE")
    async with remote(data, bucket) as store:
        await until(lambda: not bucket.objects())


async def test_rows_and_objects_are_compared_at_start(data: Path, bucket: s3.Bucket) -> None:
    async with remote(data, bucket) as store:
        await speak(store, "ada", [1])
        await speak(store, "bob", [2, 3])
        await settled(store)
        await store.evict("bob")
    lost, gone = keys(bucket, [1, 2])
    bucket.delete(lost)
    bucket.delete(gone)
    orphan = keys(bucket, [3])[0].replace("kv/blocks/", "kv/windows/")
    bucket.write(orphan, b"nobody's")
    bucket.write("kv/notes.txt", b"somebody's")
    async with remote(data, bucket) as store:
        await until(lambda: orphan not in bucket.objects())
        await settled(store)
        assert await tiers(store, 1, 2, 3) == {1: WARM, 3: REMOTE}
        assert len(keys(bucket, [1, 3])) == len(bucket.objects()) == 2
        assert bucket.read("kv/notes.txt") == b"somebody's"


async def test_files_that_vanished_while_the_store_was_down_come_back(data: Path, bucket: s3.Bucket) -> None:
    async with remote(data, bucket) as store:
        await speak(store, "ada", [1, 2])
        await settled(store)
    for path in on_disk(data):
        (data / path).unlink()
    async with remote(data, bucket) as store:
        assert await tiers(store, 1, 2) == {1: REMOTE, 2: REMOTE}
        assert len(await fetch(store, 1, 2)) == 2


async def test_an_object_store_that_is_down_at_start_is_used_when_it_is_back(
    data: Path, bucket: s3.Bucket, proxy: s3.Proxy
) -> None:
    async with remote(data, bucket, proxy.address) as store:
        await speak(store, "ada", [1])
        await settled(store)
        await store.evict()
    proxy.fault = lambda method, path: 503
    async with remote(data, bucket, proxy.address) as store:
        await speak(store, "bob", [2])
        assert await tiers(store, 1, 2) == {1: REMOTE, 2: WARM}
        assert await fetch(store, 1) == {}
        proxy.fault = lambda method, path: 0
        await settled(store)
        assert list(await fetch(store, 1)) == [1]


async def test_a_second_store_does_not_start_on_the_same_prefix(data: Path, bucket: s3.Bucket) -> None:
    async with remote(data, bucket):
        second = data.parent / "second"
        process = await spawn(
            second, f"--remote={bucket.location()}", f"--remote-endpoint={bucket.endpoint}", "--log-format=json"
        )
        _, log = await process.communicate()
        assert process.returncode == 2
        assert b"belongs to the store of another data directory; choose another prefix" in log
        assert s3.SECRET_KEY.encode() not in log and b"Traceback" not in log
        async with running(second):
            pass  # nothing of the directory is held


async def test_another_prefix_than_before_is_refused_while_objects_are_at_the_old_one(
    data: Path, bucket: s3.Bucket
) -> None:
    async with remote(data, bucket) as store:
        await speak(store, "ada", [1])
        await speak(store, "bob", [2])
        await settled(store)
        await store.evict("bob")
    elsewhere = settings(bucket, prefix="elsewhere")
    with pytest.raises(RemoteRefused, match="store abandon-remote"):
        async with running(data, remote=elsewhere):
            pass
    for key in sorted(bucket.keys()):
        bucket.write(key.replace("kv/", "moved/"), bucket.read(key))
    async with running(data, remote=settings(bucket, prefix="moved")) as store:
        assert await tiers(store, 1, 2) == {1: WARM, 2: REMOTE}
        assert list(await fetch(store, 2)) == [2]
        await store.evict("bob")
    told = CliRunner().invoke(commands.main, ["abandon-remote", str(data)])
    assert told.exit_code == 0 and told.output.startswith("2 objects are given up; delete what is at s3://")
    assert {finding.what for finding in check(data).findings} <= {"chain hash"}, "which the tests make up"
    async with running(data, remote=elsewhere) as store:
        await settled(store)
        await until(lambda: len(bucket.objects("elsewhere")) == 1)
        assert await tiers(store, 1, 2) == {1: WARM}
        assert (await look(store, 1))[1].path


async def test_who_is_taken_over_deletes_nothing_of_the_other(
    data: Path, bucket: s3.Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with remote(data, bucket) as store:
        await speak(store, "ada", [1])
        await settled(store)
        manifest = bucket.read("kv/manifest.json")
        bucket.write("kv/manifest.json", manifest.replace(b'"owner": "', b'"owner": "another'))
        (own,) = bucket.objects()
        others = own.replace("/blocks/", "/windows/")
        bucket.write(others, b"the other one's")
        monkeypatch.setattr(replication, "_COMPARE_SECONDS", 0.0)  # none had begun before the other was there
        await speak(store, "bob", [2])
        await until(lambda: store.metric("agentmem_remote_up") == 0)
        assert bucket.objects() == {own, others}
        bucket.write("kv/manifest.json", manifest)
        await until(lambda: len(bucket.objects()) == 2 and others not in bucket.objects())
