"""The core without its rings: a copy of this tree from which they are deleted starts, answers and passes its tests."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from agentmem import AsyncClient
from tests import blas
from tests.system.stack import free_port

ROOT = Path(__file__).parents[1]
COPIED = ("benchmarks", "cache_service", "gateway", "inference_service", "protos", "tests", "pyproject.toml")
RINGS = ("gateway/cluster", "gateway/workflows", "cache_service/cluster")
THEIRS = ("tests/cluster", "benchmarks/cluster", "tests/benchmarks/cluster", *(f"tests/{ring}" for ring in RINGS))
OF_THE_CORE = (
    "tests/agentmem/test_limits.py",
    "tests/gateway/test_app.py",
    "tests/gateway/cli/test_main.py",
    "tests/gateway/http/test_app.py",
    "tests/cache_service/test_opening.py",
    "tests/cache_service/rpc/test_servicer_agents.py",
    "tests/system/test_export.py",
)


@pytest.fixture(scope="module")
def core() -> Iterator[Path]:
    """A copy of the tree without rings, and their tests and benchmarks. Its name leaves room for socket paths."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="am") as directory:
        copy = Path(directory)
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("results"))
            else:
                shutil.copy2(ROOT / name, copy)
        for name in (*RINGS, *THEIRS):
            shutil.rmtree(copy / name)
        yield copy


def python(core: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start this interpreter in the copy, and on its packages."""
    environment = {**os.environ, blas.VARIABLE: "1", "AGENTMEM_WORKER_QUALITY_CHECK": "false"}
    environment["PYTHONPATH"] = os.pathsep.join((str(core), str(core / "protos")))
    command = [sys.executable, *arguments]
    return subprocess.Popen(
        command, cwd=core, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def test_a_ring_is_a_package(core: Path) -> None:
    program = """
import gateway.rings
from gateway.http.openapi import document
print([*gateway.rings.of_rings('attach')], gateway.__file__)
print([path for path in document()["paths"] if "cluster" in path or "workflow" in path])
"""
    said, _ = python(core, "-c", program).communicate(timeout=60)
    assert said == f"[] {core}/gateway/__init__.py\n[]\n"


@pytest.mark.slow
def test_the_core_passes_its_tests(core: Path) -> None:
    running = python(core, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "--quick", *OF_THE_CORE)
    said, _ = running.communicate(timeout=280)
    assert running.returncode == 0, said[-8000:]


@pytest.mark.slow
async def test_the_core_answers(core: Path) -> None:
    http, grpc = (f"127.0.0.1:{free_port()}" for _ in range(2))
    doors = ("--http", http, "--grpc", grpc, "--metrics", f"127.0.0.1:{free_port(3)}")
    up = python(core, "-m", "gateway.cli.main", "up", "--model", "demo", "--data", str(core / "d"), *doors)
    try:
        async with AsyncClient(grpc) as client, asyncio.timeout(120):
            while not await ready(http):
                await asyncio.sleep(0.2)
            answer = await client.agent("ada").ask("The boat is green.", max_tokens=4)
        assert answer.text
    finally:
        up.send_signal(signal.SIGINT)
        said, _ = await asyncio.to_thread(up.communicate, timeout=60)
    assert up.returncode == 0, said[-8000:]


async def ready(address: str) -> bool:
    async with httpx.AsyncClient() as http:
        with suppress(httpx.TransportError):
            return (await http.get(f"http://{address}/readyz", timeout=5)).is_success
    return False


def test_a_cluster_that_is_not_installed_is_refused(core: Path) -> None:
    cluster = ("--cluster", "postgresql://db/x", "--node", "a", "--advertise", "a.local:1")
    store = python(core, "-m", "cache_service", "--data", str(core / "c"), *cluster)
    said, _ = store.communicate(timeout=60)
    assert (store.returncode, "this installation has no clusters" in said) == (2, True), said
