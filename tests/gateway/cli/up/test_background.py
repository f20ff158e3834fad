from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import click
import httpx
import psutil
import pytest

from agentmem import layout
from agentmem.process.sockets import listens
from gateway.cli.up.background import _wait
from gateway.cli.up.lock import LOCK_FILE, UpLock
from gateway.cli.up.settings import up_settings
from inference_service.models.sources import registry
from tests import blas
from tests.certificates import of_server
from tests.full_matrix import FULL
from tests.gateway.running import ANY_PORT, eventually
from tests.gateway.secured import add_key
from tests.model_hub import Hub, Repository, model_hub
from tests.scripted_model import write_scripted
from tests.terminal import CTRL_C, CTRL_D, ENTER, terminal

COMMAND = (sys.executable, "-m", "gateway.cli.main")
DEMO = Path(registry([])["demo"].source)
FILES = {path.name: path.read_bytes() for path in DEMO.iterdir() if path.is_file()}


@pytest.fixture(autouse=True)
def settings(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if listens(layout.GRPC):
        pytest.skip(f"somebody listens at {layout.GRPC}, and chats would talk with that")
    for name in ("HTTP", "GRPC", "METRICS"):
        monkeypatch.setenv(f"AGENTMEM_UP_{name}", ANY_PORT)
    monkeypatch.setenv("AGENTMEM_UP_DATA", str(run_dir))
    monkeypatch.setenv("AGENTMEM_WORKER_QUALITY_CHECK", "false")
    monkeypatch.setenv("XDG_DATA_HOME", str(run_dir / "run" / "xdg"))
    monkeypatch.setenv(blas.VARIABLE, "1")


def left(run_dir: Path) -> list[psutil.Process]:
    found = []
    for each in psutil.process_iter():
        try:
            environment = each.environ()
        except psutil.Error:
            continue
        if environment.get("AGENTMEM_UP_DATA") == str(run_dir) and each.pid != os.getpid():
            found.append(each)
    return [each for each in found if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]


def none_is_left(run_dir: Path) -> Callable[[], bool]:
    return lambda: not left(run_dir)


async def ran(*arguments: str, status: int = 0) -> tuple[str, str]:
    process = await asyncio.create_subprocess_exec(
        *COMMAND, *arguments, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    assert process.returncode == status, out.decode() + err.decode()
    return out.decode(), err.decode()


@asynccontextmanager
async def chatting(run_dir: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(*COMMAND, "chat", "--model", "demo"),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(b"The key is in the cellar.\n")
        assert b"cellar" in await asyncio.wait_for(process.stdout.readline(), 120)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        for each in left(run_dir):
            each.kill()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("NO_PROXY", "*")
    with model_hub() as served:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{served.port}")
        yield served


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM] if FULL else [signal.SIGKILL])
async def test_a_chat_that_is_ended_leaves_nothing(run_dir: Path, number: signal.Signals) -> None:
    async with chatting(run_dir) as process:
        assert len(left(run_dir)) == 5, "chat, up, and three services"
        _, err = await ran("chat", "another", "--model", "demo", "--message", "hi")
        assert "this is the Agentmem that runs already (pid" in err
        process.send_signal(number)
        assert await asyncio.wait_for(process.wait(), 60) == (130 if number == signal.SIGINT else -number)
        await eventually(none_is_left(run_dir), within=60)
        assert not (run_dir / "store.db-wal").exists(), "the store has ended in order"


@pytest.mark.slow
async def test_a_bench_starts_what_it_measures_and_stops_it(run_dir: Path) -> None:
    out, err = await ran("bench", "--json")
    assert json.loads(out)["model"] == "demo" and err == "stopping Agentmem…\n"
    await eventually(none_is_left(run_dir), within=60)


@pytest.mark.slow
async def test_at_a_terminal_ctrl_c_is_the_chats(run_dir: Path) -> None:
    """It stops an answer; the stack, which is not of the terminal's foreground, goes on. The end of input ends both."""
    async with terminal("-m", "gateway.cli.main", "chat", "--model", "demo") as shown:
        await shown.until("chat on demo, a new agent", ">")
        shown.type(CTRL_C)
        shown.type(f"The key is in the cellar.{ENTER}")
        await shown.until("Noted", ">")
        shown.type(CTRL_D)
        await shown.until("stopping Agentmem")
        assert await shown.ended() == 0
    assert left(run_dir) == []
    assert not (run_dir / "store.db-wal").exists(), "the store has ended in order"
    log = run_dir / "logs" / "up.log"
    assert "model    demo" in log.read_text() and "agentmem models search" in log.read_text()
    assert (log.stat().st_mode & 0o777, log.parent.stat().st_mode & 0o777) == (0o600, 0o700)


async def test_ctrl_c_while_it_starts(run_dir: Path) -> None:
    async with terminal("-m", "gateway.cli.main", "chat", "--model", "demo") as shown:
        await shown.until("starting Agentmem")
        shown.type(CTRL_C)
        assert await shown.ended() == 130
    assert left(run_dir) == []


@pytest.mark.slow
async def test_what_cannot_be_started_says_why(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, err = await ran("chat", "--model", "./none", "--message", "hi", status=2)
    assert "does not exist" in err and err.count("\n") == 1
    monkeypatch.setenv("AGENTMEM_UP_MODELS", str(run_dir / "none.toml"))
    _, err = await ran("chat", "--model", "demo", "--message", "hi", status=2)
    assert "none.toml" in err and err.count("\n") == 1
    monkeypatch.delenv("AGENTMEM_UP_MODELS")
    monkeypatch.setenv("AGENTMEM_STORE_WARM_BYTES", "many")
    _, err = await ran("chat", "--model", "demo", "--message", "hi", status=2)
    assert "STORE_WARM_BYTES: 'many' is not a whole number" in err and err.count("\n") == 1
    monkeypatch.delenv("AGENTMEM_STORE_WARM_BYTES")
    monkeypatch.setenv("AGENTMEM_UP_HTTP", "192.0.2.1:80")  # nobody's: for documentation
    monkeypatch.setenv("AGENTMEM_UP_KEYS", str(run_dir / "keys.json"))
    add_key(run_dir)
    _, err = await ran("chat", "--model", "demo", "--message", "hi", status=1)
    assert "Agentmem could not be started; it wrote:" in err and "cannot listen on 192.0.2.1:80" in err
    assert left(run_dir) == []


def test_chat_does_not_wait_for_a_process_that_got_the_holders_number_later(run_dir: Path) -> None:
    lock, said = run_dir / LOCK_FILE, iter(["no port is free"])
    lock.write_text(json.dumps({"pid": os.getpid()}))
    os.utime(lock, (0, 0))
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
        with pytest.raises(click.ClickException, match="could not be started; it wrote:\nno port is free"):
            _wait(up_settings({}), ended, lambda: next(said))


async def test_a_stack_with_tls_is_not_started(run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_server(tmp_path)
    monkeypatch.setenv("AGENTMEM_UP_TLS_CERT", str(tmp_path / "server.pem"))
    monkeypatch.setenv("AGENTMEM_UP_TLS_KEY", str(tmp_path / "server.key"))
    _, err = await ran("chat", "--model", "demo", "--message", "hi", status=2)
    assert "start it with `agentmem up`" in err and "--model demo --gateway HOST:PORT --ca FILE" in err
    assert not (run_dir / "up.lock").exists()


@pytest.mark.slow
async def test_launch_starts_a_stack_for_its_client_and_ends_it(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "opencode"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "$OPENCODE_CONFIG_CONTENT"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    _, err = await ran("launch", "opencode", status=2)
    assert "the model 'demo' cannot call tools" in err and err.count("\n") == 1
    model = write_scripted(tmp_path / "scripted", context=16_384)
    monkeypatch.setenv("AGENTMEM_UP_MODEL", json.dumps([str(model)]))
    out, err = await ran("launch", "opencode")
    given = json.loads(out.splitlines()[-1])
    provider = given["provider"]["agentmem"]
    assert given["model"] == "agentmem/scripted"
    assert provider["models"]["scripted"]["limit"] == {"context": 16_384, "output": 2048}
    assert provider["options"]["baseURL"] == f"http://{json.loads((run_dir / LOCK_FILE).read_text())['http']}/v1"
    assert "no turns" in err
    assert left(run_dir) == []


@pytest.mark.slow
async def test_a_model_of_the_hub_is_fetched_first_and_kept_for_the_next_chat(run_dir: Path, hub: Hub) -> None:
    hub.repositories["mlx-community/Small-4bit"] = Repository(FILES)
    hub.repositories["mlx-community/Large-4bit"] = Repository(FILES, claimed={"model.safetensors": 10**13})
    _, err = await ran("chat", "--model", "mlx-community/Large-4bit", "--message", "hi", status=1)
    assert "does not fit" in err
    small = ("chat", "ada", "--model", "mlx-community/Small-4bit")
    try:
        out, err = await ran(*small, "--keep", "--message", "The key is in the cellar.")
        assert "fits: weights" in err and out.startswith("Noted, the key is in the cellar.")
        pid = json.loads((run_dir / "up.lock").read_text())["pid"]
        assert "goes on serving at 127.0.0.1:" in err and f"`kill {pid}` stops it" in err
        out, err = await ran(*small, "--message", "Where is the key?", "--json")
        assert json.loads(out)["text"] == "The key is in the cellar." and err == ""
        _, err = await ran("chat", "--model", "org/other", "--message", "hi", status=1)
        assert "has no model 'org/other', but mlx-community/Small-4bit, demo" in err
        os.kill(pid, signal.SIGTERM)
        await eventually(none_is_left(run_dir), within=60)
    finally:
        for each in left(run_dir):
            each.kill()


@pytest.mark.slow
async def test_up_at_a_terminal_shows_how_far_its_model_is(run_dir: Path, hub: Hub) -> None:
    hub.repositories["mlx-community/Slow-4bit"] = Repository(FILES, seconds=20)
    async with terminal("-m", "gateway.cli.main", "up", "--model", "mlx-community/Slow-4bit") as shown:
        await shown.until("mlx-community/Slow-4bit: 11.2 MB", "fits: weights", "downloading")
        shown.type(CTRL_C)
        await shown.until("the same command goes on with what is missing")
        assert await shown.ended() == 130
    assert left(run_dir) == []
    assert not (run_dir / "logs").exists() and not (run_dir / "store.db").exists(), "nothing was started"


@pytest.mark.slow
async def test_who_asks_is_told_how_far_a_download_of_the_worker_is(run_dir: Path, hub: Hub) -> None:
    """Without a terminal the worker fetches its model, while the gateway answers."""
    hub.repositories["mlx-community/Slow-4bit"] = Repository(FILES, seconds=60)
    up = await asyncio.create_subprocess_exec(
        *(*COMMAND, "up", "--model", "mlx-community/Slow-4bit"),
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        await eventually((run_dir / "run" / "gateway.json").exists, within=60)
        address = json.loads((run_dir / "run" / "gateway.json").read_text())["http"]
        async with asyncio.timeout(60), httpx.AsyncClient(base_url=f"http://{address}", timeout=30) as http:
            while "loading" not in (told := (await http.get("/readyz")).json()) or not told["loading"]["share"]:
                await asyncio.sleep(0.05)
        assert told["reason"].startswith("loading mlx-community/Slow-4bit: downloading it from the hub, ")
        assert "once per model" in told["reason"]
        assert (told["status"], told["loading"]["stage"], told["loading"]["once"]) == ("not ready", "fetch", True)
        up.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(up.wait(), 60) == 0
    finally:
        for each in left(run_dir):
            each.kill()
        await up.wait()


async def test_up_at_a_terminal_fetches_nothing_where_another_up_is(run_dir: Path, hub: Hub) -> None:
    with closing(UpLock(run_dir, 0, print)):
        async with terminal("-m", "gateway.cli.main", "up", "--model", "org/any") as shown:
            await shown.until(f"another agentmem up (pid {os.getpid()})")
            assert await shown.ended() == 2
        assert hub.seen == []
