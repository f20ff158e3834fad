"""What tests of several packages need, made when first asked for: an S3 endpoint, a PostgreSQL server, faults of disks.

And records of gRPC's log as text: caplog keeps records, and a gRPC server logs itself at DEBUG while it is deallocated,
so that a kept record would refer to freed memory, which crashes the garbage collector in whatever test comes next.
"""

from __future__ import annotations

import gc
import logging
import os
import random
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import blas, postgres, s3
from tests.faults import shim
from tests.full_matrix import FULL

blas.preload()

# Nothing that depends on the machine's speed.
settings.register_profile(
    "unhurried", deadline=None, max_examples=200 if FULL else 30, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("unhurried")

_SLOWEST = (
    "tests/benchmarks/",
    "tests/cache_service/test_",
    "tests/cluster/",
    "tests/inference_service/",
    "tests/system/",
)
"""Where the tests are that take five sixths of the time of all."""


def _as_text(record: logging.LogRecord) -> bool:
    record.msg, record.args = record.getMessage(), ()
    return True


logging.getLogger("grpc._cython.cygrpc").addFilter(_as_text)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What collecting makes stays to the end, a million objects: the garbage collector need not look at them again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Thin out what is marked `sampled`, and what takes longest, unless the full matrix is wanted.

    Of a sampled test's cases one in n stays, the same ones each time, and at least one; those with an injected fault
    all stay. Of the slowest packages the half stays that TEST_HALF says. Tests of whole processes go first:
    they are the longest, and one core would wait for the last of them.
    """
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        marked = None if FULL else item.get_closest_marker("sampled")
        if marked is not None and "fault" not in item.nodeid:
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left: set[pytest.Item] = set()
    for test, found in cases.items():
        every = found[0].get_closest_marker("sampled").args[0]  # type: ignore[union-attr]
        kept = random.Random(test).sample(found, -(-len(found) // every))
        left.update(item for item in found if item not in kept)
    left.update(item for item in items if not _in_half(item.nodeid))
    if left:
        config.hook.pytest_deselected(items=sorted(left, key=lambda item: item.nodeid))
        items[:] = [item for item in items if item not in left]
    items.sort(key=lambda item: not item.nodeid.startswith("tests/system/"))


def _in_half(test: str) -> bool:
    """Whether a test is in the half that is wanted; those that are fast are in both."""
    half = os.environ.get("TEST_HALF")
    return not half or FULL or not test.startswith(_SLOWEST) or zlib.crc32(test.encode()) % 2 == int(half)


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """The address of an S3 endpoint over HTTP, one for all tests of a process."""
    with s3.serving() as address:
        yield address


@pytest.fixture
def bucket(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> s3.Bucket:
    """An empty bucket, and credentials for it where AWS's tools look."""
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    for name, value in s3.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    bucket = s3.Bucket(s3_endpoint)
    bucket.create()
    return bucket


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgres.Server]:
    """A PostgreSQL server, one for all tests of a process; it is fast, and would not survive a crash of the machine."""
    try:
        with postgres.serving() as server:
            yield server
    except postgres.NoServer as problem:
        pytest.skip(str(problem))


@pytest.fixture(scope="module")
def by_openblas() -> Iterator[None]:
    """Products of a module's tests are by OpenBLAS, where that can be had: for what compares no bits."""
    with blas.openblas():
        yield


@pytest.fixture(scope="session")
def fault_shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that injects faults of disks, built here."""
    try:
        return shim.build(tmp_path_factory.mktemp("shim"))
    except shim.Unbuildable as problem:
        pytest.skip(str(problem))
