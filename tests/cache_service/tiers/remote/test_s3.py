"""The tier in S3, against a server on localhost that speaks HTTP, with faults made by a proxy between them."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agentmem.kv import blockfile
from agentmem.kv.blockfile import FileKind
from agentmem.kv.object_location import Location
from cache_service.tiers.remote.contract import (
    NotOwner,
    ObjectDamaged,
    ObjectMissing,
    ObjectName,
    RemoteRefused,
    RemoteUnavailable,
)
from cache_service.tiers.remote.s3 import S3Tier, object_key
from tests import s3


def tier(bucket: s3.Bucket, endpoint: str | None = None, prefix: str = "kv") -> S3Tier:
    location = Location.parse(bucket.location(prefix))
    assert location is not None
    return S3Tier(location, endpoint or bucket.endpoint, "", 5.0)


class File:
    def __init__(self, folder: Path, size: int = 100_000, kind: FileKind = FileKind.BLOCK) -> None:
        self.data = os.urandom(size)
        self.name = ObjectName(kind, os.urandom(32), blockfile.digest(self.data), "0" * 16)
        self.path = folder / f"{self.name.chain_hash.hex()}.safetensors"
        self.path.write_bytes(self.data)
        self.target = folder / "fetched"

    @property
    def key(self) -> str:
        return f"kv/{object_key(self.name)}"


def test_what_is_put_comes_back(bucket: s3.Bucket, tmp_path: Path) -> None:
    remote = tier(bucket)
    for file in (File(tmp_path, 3_000_000), File(tmp_path, 7, FileKind.WINDOW)):
        remote.put(file.name, file.path)
        assert bucket.read(file.key) == file.data
        remote.get(file.name, len(file.data), file.target)
        assert file.target.read_bytes() == file.data
        assert file.target.stat().st_mode & 0o777 == 0o600
        file.target.unlink()


def test_an_object_is_uploaded_once(bucket: s3.Bucket, proxy: s3.Proxy, tmp_path: Path) -> None:
    remote, file = tier(bucket, proxy.address), File(tmp_path)
    bucket.write(file.key, b"was there first")
    remote.put(file.name, file.path)
    assert bucket.read(file.key) == b"was there first"


def test_a_file_that_is_damaged_on_disk_is_not_uploaded(bucket: s3.Bucket, tmp_path: Path) -> None:
    remote, file = tier(bucket), File(tmp_path)
    file.path.write_bytes(bytes([file.data[0] ^ 1]) + file.data[1:])
    with pytest.raises(ObjectDamaged):
        remote.put(file.name, file.path)
    file.path.unlink()
    with pytest.raises(ObjectMissing):
        remote.put(file.name, file.path)
    assert bucket.objects() == set()


@pytest.mark.parametrize("fault", ["flipped", "truncated", "longer", "empty"])
def test_an_object_with_other_bytes_is_damaged(bucket: s3.Bucket, tmp_path: Path, fault: str) -> None:
    remote, file = tier(bucket), File(tmp_path)
    remote.put(file.name, file.path)
    bad = {
        "flipped": file.data[:-1] + bytes([file.data[-1] ^ 1]),
        "truncated": file.data[:-1],
        "longer": file.data + b"\0",
        "empty": b"",
    }[fault]
    bucket.write(file.key, bad)
    with pytest.raises(ObjectDamaged, match="not what was uploaded"):
        remote.get(file.name, len(file.data), file.target)
    assert not file.target.exists()


def test_an_object_that_is_not_there(bucket: s3.Bucket, tmp_path: Path) -> None:
    file = File(tmp_path)
    with pytest.raises(ObjectMissing):
        tier(bucket).get(file.name, len(file.data), file.target)
    assert not file.target.exists()


def test_a_server_that_is_overloaded_for_a_moment(bucket: s3.Bucket, proxy: s3.Proxy, tmp_path: Path) -> None:
    remote, file = tier(bucket, proxy.address), File(tmp_path)
    faults = iter([503, 500])
    proxy.fault = lambda method, path: next(faults, 0)
    remote.put(file.name, file.path)
    faults = iter([503])
    remote.get(file.name, len(file.data), file.target)
    assert file.target.read_bytes() == file.data


def test_a_server_that_stays_overloaded(bucket: s3.Bucket, proxy: s3.Proxy, tmp_path: Path) -> None:
    remote, file = tier(bucket, proxy.address), File(tmp_path)
    remote.put(file.name, file.path)
    proxy.fault = lambda method, path: 503
    with pytest.raises(RemoteUnavailable):
        remote.get(file.name, len(file.data), file.target)
    with pytest.raises(RemoteUnavailable):
        remote.put(file.name, file.path)
    with pytest.raises(RemoteUnavailable):
        remote.delete([file.name])
    with pytest.raises(RemoteUnavailable):
        list(remote.names())
    with pytest.raises(RemoteUnavailable):
        remote.claim("owner", may_create=True)
    assert not file.target.exists()


def test_an_answer_that_always_breaks_off_is_never_taken_for_whole(
    bucket: s3.Bucket, proxy: s3.Proxy, tmp_path: Path
) -> None:
    remote, file = tier(bucket, proxy.address), File(tmp_path, 5_000_000)
    remote.put(file.name, file.path)
    proxy.fault = lambda method, path: s3.CUT if method == "GET" else 0
    with pytest.raises((RemoteUnavailable, ObjectDamaged)):
        remote.get(file.name, len(file.data), file.target)
    assert not file.target.exists()


def test_nobody_listens(bucket: s3.Bucket, tmp_path: Path) -> None:
    remote, file = tier(bucket, f"http://127.0.0.1:{s3.free_port()}"), File(tmp_path)
    with pytest.raises(RemoteUnavailable, match=f"{bucket.location()} at http"):
        remote.put(file.name, file.path)
    with pytest.raises(RemoteUnavailable):
        remote.claim("owner", may_create=True)


def test_a_bucket_that_does_not_exist_is_a_mistake_and_no_missing_object(bucket: s3.Bucket, tmp_path: Path) -> None:
    remote, file = tier(s3.Bucket(bucket.endpoint)), File(tmp_path)
    for call in (
        lambda: remote.claim("owner", may_create=True),
        lambda: remote.put(file.name, file.path),
        lambda: remote.get(file.name, 1, file.target),
        lambda: list(remote.names()),
    ):
        with pytest.raises(RemoteRefused, match=r"NoSuchBucket; mend --remote"):
            call()


def test_errors_hold_no_credentials(bucket: s3.Bucket, proxy: s3.Proxy, tmp_path: Path) -> None:
    remote, file = tier(bucket, proxy.address), File(tmp_path)
    for status in (400, 403, 404, 500, 501):
        proxy.fault = lambda method, path, status=status: status
        with pytest.raises(Exception) as refused:
            remote.get(file.name, 1, file.target)
        for secret in (s3.ACCESS_KEY, s3.SECRET_KEY, "Credential=", "Signature="):
            assert secret not in str(refused.value)
        assert refused.value.__suppress_context__


def test_objects_are_deleted_and_those_that_are_not_there_too(bucket: s3.Bucket, tmp_path: Path) -> None:
    remote, files = tier(bucket), [File(tmp_path) for _ in range(3)]
    for file in files:
        remote.put(file.name, file.path)
    for _ in range(2):
        remote.delete([file.name for file in files[:2]])
        assert bucket.objects() == {files[2].key}
    remote.delete([])


def test_all_objects_are_named_and_others_are_left_out(bucket: s3.Bucket, tmp_path: Path) -> None:
    remote = tier(bucket)
    remote.claim("owner", may_create=True)
    files = [File(tmp_path, 10, kind) for kind in (FileKind.BLOCK, FileKind.BLOCK, FileKind.WINDOW)]
    for file in files:
        remote.put(file.name, file.path)
    bucket.write("kv/blocks/README", b"")
    bucket.write(f"kv2/{object_key(files[0].name)}", b"")
    assert sorted(remote.names()) == sorted(file.name for file in files)


def test_an_empty_prefix_is_the_whole_bucket(bucket: s3.Bucket, tmp_path: Path) -> None:
    remote, file = tier(bucket, prefix=""), File(tmp_path)
    remote.claim("owner", may_create=True)
    remote.put(file.name, file.path)
    assert bucket.keys() == {"manifest.json", object_key(file.name)}
    assert list(remote.names()) == [file.name]


def test_the_owner_comes_back_and_another_is_refused(bucket: s3.Bucket) -> None:
    tier(bucket).claim("owner", may_create=True)
    for may_create in (True, False):
        tier(bucket).claim("owner", may_create=may_create)
    with pytest.raises(NotOwner, match=r"s3://.*/kv at .*another data directory"):
        tier(bucket).claim("second owner", may_create=True)
    with pytest.raises(NotOwner, match=r"no manifest.json"):
        tier(bucket, prefix="kv/second").claim("second owner", may_create=False)
    tier(bucket, prefix="kv/second").claim("second owner", may_create=True)


def test_of_many_that_claim_at_once_one_has_it(bucket: s3.Bucket, proxy: s3.Proxy) -> None:
    def claim(number: int) -> bool:
        try:
            tier(bucket, proxy.address).claim(f"owner {number}", may_create=True)
        except NotOwner:
            return False
        return True

    with ThreadPoolExecutor(6) as threads:
        assert sum(threads.map(claim, range(6))) == 1


def test_a_manifest_that_nobody_of_us_wrote(bucket: s3.Bucket) -> None:
    bucket.write("kv/manifest.json", b"<html>")
    with pytest.raises(NotOwner, match="another prefix"):
        tier(bucket).claim("owner", may_create=True)
    assert bucket.read("kv/manifest.json") == b"<html>"
