from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from gateway.cli.launch.running import environment
from tests.terminal import terminal

RUNS = """
import os, signal, sys, tempfile
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, signal.SIG_DFL)  # nohup and scripts' background jobs ignore some
from gateway.cli.launch.running import signals_passed_on
with signals_passed_on() as run, tempfile.TemporaryDirectory(dir=sys.argv[1]) as folder:
    open(os.path.join(folder, "key"), "w").close()
    status = run([sys.executable, "-c", sys.argv[2]], os.environ)
    print("ended", status, flush=True)
    sys.stdin.readline()
"""
KILLED = """
import os, signal, sys, tty
tty.setraw(0)
os.kill(os.getpid(), signal.SIGKILL)
"""
WAITS = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
print("waits", flush=True)
time.sleep(600)
"""


def test_hosts_without_a_proxy_stay_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs read one of both names, or the other."""
    monkeypatch.setenv("NO_PROXY", "git.corp")
    monkeypatch.delenv("no_proxy", raising=False)
    given = environment({"A": "b"}, "127.0.0.1")
    assert (given["NO_PROXY"], given["no_proxy"], given["A"]) == ("git.corp,127.0.0.1", "git.corp,127.0.0.1", "b")
    monkeypatch.setenv("no_proxy", "10.0.0.1")
    assert environment({}, "127.0.0.1")["no_proxy"] == "git.corp,10.0.0.1,127.0.0.1"


async def test_a_client_that_is_killed_leaves_the_terminal_as_it_was(tmp_path: Path) -> None:
    async with terminal("-c", RUNS, str(tmp_path), KILLED) as shown:
        before = shown.modes()
        await shown.until("ended 137")
        assert shown.modes() == before
        assert b"\x1b[?1049l\x1b[?25h" in shown.raw


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
async def test_no_key_stays_on_the_disk(tmp_path: Path, number: signal.Signals) -> None:
    """The client has the first signal; one that comes after it ends the command, once its files are gone."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", RUNS, str(tmp_path), WAITS),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, process_group=0,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    assert await process.stdout.readline() == b"waits\n"
    process.send_signal(signal.SIGTSTP)  # which a terminal gives the client, too: it decides
    process.terminate()
    assert await process.stdout.readline() == b"ended 3\n"
    assert len([*tmp_path.glob("*/key")]) == 1
    process.send_signal(number)
    process.stdin.write(b"\n")
    assert await asyncio.wait_for(process.wait(), 60) == 128 + number
    assert not any(tmp_path.iterdir())
