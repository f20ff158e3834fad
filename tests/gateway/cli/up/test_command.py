from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import psutil
import pytest

from gateway.ui.files import STATIC
from tests import blas
from tests.certificates import of_server
from tests.gateway.running import ANY_PORT, eventually
from tests.gateway.secured import add_key
from tests.service_manager import Heard

BODY = {"model": "demo", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "temperature": 0}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker's check of quantized KV takes most of a first start, and other tests have it."""
    monkeypatch.setenv("AGENTMEM_WORKER_QUALITY_CHECK", "false")
    monkeypatch.setenv(blas.VARIABLE, "1")


async def line_with(output: asyncio.StreamReader, wanted: str) -> str:
    async with asyncio.timeout(120):
        async for line in output:
            if wanted in line.decode():
                return line.decode()
    raise AssertionError(f"it ended without saying {wanted!r}")


def children(pid: int) -> dict[str, psutil.Process]:
    return {child.cmdline()[5]: child for child in psutil.Process(pid).children()}


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Iterator[Heard]:
    with TemporaryDirectory(prefix="am") as directory, Heard(Path(directory)) as heard:  # run_dir is up's data alone
        monkeypatch.setenv("NOTIFY_SOCKET", heard.address)
        yield heard


@asynccontextmanager
async def started(*arguments: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, asyncio.StreamReader]]:
    """`agentmem up` and what it says. Where the block ends well, it is stopped, and must end well, too."""
    up = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway.cli.main", "up", *arguments),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    assert up.stdout is not None
    try:
        yield up, up.stdout
        up.send_signal(signal.SIGINT)
        await line_with(up.stdout, "stopping; requests that run have")
        await line_with(up.stdout, "stopped")
        assert await up.wait() == 0
    finally:
        if up.returncode is None:
            up.kill()
            await up.wait()


def read_up_to(descriptor: int, wanted: str) -> None:
    with open(descriptor) as lines:
        next(line for line in lines if wanted in line)


async def refused(*arguments: str) -> str:
    up = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway.cli.main", "up", *arguments), stderr=asyncio.subprocess.PIPE
    )
    _, told = await up.communicate()
    assert up.returncode == 2
    return told.decode()


@pytest.mark.essential("README's first command")
async def test_up(run_dir: Path, heard: Heard) -> None:
    add_key(run_dir)  # which nobody asks for, as up says
    told = ["--data", str(run_dir), "--http", ANY_PORT, "--grpc", ANY_PORT, "--metrics", ANY_PORT]
    async with started("--model", "demo", *told) as (up, output):
        page = (await line_with(output, "web UI  ")).split()[2]
        assert "none are asked for" in await line_with(output, "keys  ")
        await line_with(output, "Ready")
        await heard.wait_for("READY=1")
        addresses = json.loads((run_dir / "run" / "gateway.json").read_text())
        services = children(up.pid)
        assert set(services) == {"cache_service", "inference_service", "gateway"}
        async with httpx.AsyncClient(base_url=f"http://{addresses['http']}", timeout=60) as http:
            assert page == f"http://{addresses['http']}/ui/"
            assert (await http.get(page)).content == (STATIC / "index.html").read_bytes()
            assert f"another agentmem up (pid {up.pid}, http {addresses['http']}, " in await refused(*told)
            answer = await http.post("/v1/chat/completions", json=BODY, headers={"X-Agent-ID": "bob"})
            assert answer.json()["agentmem"]["durable"] is True

            services["inference_service"].kill()
            await line_with(output, "worker ended with signal SIGKILL; starting it again")
            await line_with(output, "worker ready again")
            async with asyncio.timeout(60):
                while (await http.get("/readyz")).status_code != 200:
                    await asyncio.sleep(0.1)
            history = [*BODY["messages"], answer.json()["choices"][0]["message"], *BODY["messages"]]  # type: ignore[misc]
            again = await http.post(
                "/v1/chat/completions", json={**BODY, "messages": history}, headers={"X-Agent-ID": "bob"}
            )
            assert again.json()["agentmem"]["match"] in ("extend", "partial")
    assert "STOPPING=1" in heard.listen()
    assert "READY=1" not in heard.said, "the services speak to nobody but up"


@pytest.mark.slow
async def test_up_stops_in_order_where_nobody_reads(run_dir: Path) -> None:
    """As in `agentmem up 2>&1 | tee log`, where Ctrl-C ends tee as well."""
    reader, writer = os.pipe()
    told = ["--data", str(run_dir), "--http", ANY_PORT, "--grpc", ANY_PORT, "--metrics", ANY_PORT]
    up = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway.cli.main", "up", *told), stdout=writer, stderr=writer
    )
    os.close(writer)
    try:
        await asyncio.to_thread(read_up_to, reader, "Ready")
        services = children(up.pid)
        (run_dir / "run" / "gateway.json").unlink()
        services["gateway"].kill()  # of which up has something to say
        await eventually((run_dir / "run" / "gateway.json").exists)
        services = children(up.pid)
        up.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(up.wait(), 60) == 0
        assert not [each for each in services.values() if each.is_running()]
        assert not list(run_dir.glob("store.db-wal")), "the store has ended in order"
    finally:
        with suppress(ProcessLookupError):
            up.kill()
        await up.wait()


@pytest.mark.slow
async def test_up_with_keys_and_client_certificates(run_dir: Path, tmp_path: Path) -> None:
    ca = of_server(tmp_path)
    files = {"tls-cert": "server.pem", "tls-key": "server.key", "tls-client-ca": "ca.pem"}
    key = add_key(run_dir)  # before the first start, in what becomes the data directory
    flags = [part for name, file in files.items() for part in (f"--{name}", str(tmp_path / file))]
    listeners = ["--http", "0.0.0.0:0", "--grpc", ANY_PORT, "--metrics", ANY_PORT]
    async with started("--data", str(run_dir), *listeners, "--keys", str(run_dir / "keys.json"), *flags) as (_, output):
        said = await line_with(output, "HTTP     https://0.0.0.0:")
        port = said.partition("0.0.0.0:")[2].partition("/")[0]
        await line_with(output, "Ready")
        context = ssl.create_default_context(cafile=tmp_path / "ca.pem")
        ca.issue_cert("me@example.org").configure_cert(context)
        async with httpx.AsyncClient(base_url=f"https://127.0.0.1:{port}", verify=context, timeout=60) as http:
            assert (await http.get("/v1/models")).status_code == 401
            answer = await http.get("/v1/models", headers={"authorization": f"Bearer {key}"})
            assert answer.json()["data"][0]["id"] == "demo"


async def test_a_port_that_is_taken_is_told_before_anything_starts(run_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = f"127.0.0.1:{server.getsockname()[1]}"
        said = await refused("--data", str(run_dir), "--http", taken)
    assert f"--http {taken}: cannot listen" in said and "Traceback" not in said
    assert [path.name for path in run_dir.iterdir()] == ["up.lock"]


async def test_up_writes_nothing_where_something_else_is(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").touch()
    (tmp_path / "staging").mkdir()
    told = await refused("--data", str(tmp_path))
    assert "choose a directory of its own as --data" in told and "Traceback" not in told
    assert sorted(path.name for path in tmp_path.iterdir()) == ["staging", "thesis.txt"]
