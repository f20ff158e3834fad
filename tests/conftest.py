"""Fixtures of several packages are made when first asked for: an S3 endpoint, a PostgreSQL server, faults of disks.

And records of gRPC's log as text: caplog keeps records, and a gRPC server logs itself at DEBUG while it is deallocated,
so that a kept record would refer to freed memory, which crashes the garbage collector in whatever test comes next.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from _pytest.nodeid import coerce_node_id
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

import inference_service  # noqa: F401 - keeps mlx-lm from lowering the limit of open files
from tests import blas, s3
from tests.faults import shim
from tests.full_matrix import FULL

if TYPE_CHECKING:
    from tests.postgres import Server
    from tests.postgres_pair import Pair

blas.preload()

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # A shell's background jobs ignore it, and so would all children.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Nothing that depends on the machine's speed; and at every commit the same examples, for its tests are always the same.
settings.register_profile(
    "unhurried",
    deadline=None,
    max_examples=200 if FULL else 30,
    derandomize=not FULL,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("unhurried")


def _as_text(record: logging.LogRecord) -> bool:
    record.msg, record.args = record.getMessage(), ()
    return True


logging.getLogger("grpc._cython.cygrpc").addFilter(_as_text)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the million objects of collecting out of garbage collection: they stay to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run tests of whole processes first: they are the longest, and one core would wait for the last of them.

    pytest-xdist runs one of several cases that have the same id, as those of Schemathesis have. They get their names.
    """
    times = Counter(item.nodeid for item in items)
    for item in items:
        if times[item.nodeid] > 1:
            item._id = coerce_node_id(f"{item.nodeid.rpartition('::')[0]}::{item.name}")
    if len({item.nodeid for item in items}) < len(items):
        raise pytest.UsageError("cases have the same id, of which pytest-xdist would run one")
    items.sort(key=lambda item: not item.nodeid.startswith("tests/system/"))


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadFileScheduling:
    """Give one process the tests of a file, and one those of the page: they share a browser and a stack."""
    return _ByFile(config, log)


class _ByFile(LoadFileScheduling):  # type: ignore[misc]
    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return "tests/system/page" if file.startswith("tests/system/page/") else str(file)


@pytest.fixture
def run_dir() -> Iterator[Path]:
    """A directory whose name leaves room for socket paths."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="am") as path:
        yield Path(path)


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """The address of an S3 endpoint over HTTP, one for all tests of a process."""
    with s3.serving() as address:
        yield address


@pytest.fixture
def bucket(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> s3.Bucket:
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
def postgres_server() -> Iterator[Server]:
    """A PostgreSQL server, one for all tests of a process; it is fast, and would not survive a crash of the machine."""
    from tests import postgres

    with postgres.serving() as server:
        yield server


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A PostgreSQL server and its synchronous standby, which a test may stop or kill."""
    from tests.postgres_pair import paired

    with paired() as pair:
        yield pair


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
