from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path

import psutil
import pytest

from gateway.cli.up import supervisor
from gateway.cli.up.supervisor import Service, ServiceFailed, Supervisor, restart_delay
from tests.gateway.cli.up.supervise import ROOT, log, service, started
from tests.gateway.running import eventually


class Running:
    def __init__(self, services: list[Service], grace: float = 20.0) -> None:
        self.stopping = asyncio.Event()
        self.started = asyncio.Event()
        self.reports: list[str] = []
        self.supervisor = Supervisor(services, grace, self.reports.append)

    async def has_started(self) -> None:
        self.started.set()

    async def __aenter__(self) -> Running:
        self.task = asyncio.create_task(self.supervisor.run(self.stopping, self.has_started))
        started = asyncio.create_task(self.started.wait())
        await asyncio.wait({self.task, started}, timeout=30, return_when=asyncio.FIRST_COMPLETED)
        started.cancel()
        if self.task.done():
            await self.task
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stopping.set()
        await self.task


async def test_starts_all_and_stops_them_in_reverse(tmp_path: Path) -> None:
    async with Running([service(name, tmp_path) for name in ("a", "b", "c")]) as running:
        pids = started(tmp_path)
        assert set(pids) == {"a", "b", "c"}
        assert {os.getpgid(pid) for (pid,) in pids.values()}.isdisjoint({os.getpgid(0)})
    assert log(tmp_path)[3:] == ["c end", "b end", "a end"]
    assert running.reports == ["a starting…", "a ready, b starting…", "b ready, c starting…"]


async def test_none_waits_for_another_to_be_started(tmp_path: Path) -> None:
    """The first is ready only when the last has started; what is said keeps to their order."""

    async def last_started() -> bool:
        return "c" in started(tmp_path)

    first = service("a", tmp_path)
    waiting = Service("a", first.module, first.arguments, last_started, first.environment)
    async with Running([waiting, service("b", tmp_path), service("c", tmp_path)]) as running:
        assert running.started.is_set()
    assert running.reports == ["a starting…", "a ready, b starting…", "b ready, c starting…"]


async def test_starts_again_what_dies(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "gateway.cli.up.supervisor")
    async with Running([service("a", tmp_path), service("b", tmp_path)]) as running:
        for life in range(1, 4):
            os.kill(started(tmp_path)["b"][-1], signal.SIGKILL)
            await eventually(lambda life=life: len(started(tmp_path)["b"]) > life)  # type: ignore[misc]
            await eventually(lambda life=life: running.reports.count("b ready again") == life)  # type: ignore[misc]
    assert len(started(tmp_path)["a"]) == 1
    assert log(tmp_path)[-2:] == ["b end", "a end"]
    ended = [report for report in running.reports[2:] if report != "b ready again"]
    assert len(ended) == 3
    assert all(report.startswith("b ended with signal SIGKILL; starting it again in ") for report in ended)
    pids = started(tmp_path)["b"]
    told = [(record.message, record.fields["pid"]) for record in caplog.records if record.fields["name"] == "b"]  # type: ignore[attr-defined]
    assert told[:2] == [("service started", pids[0]), ("service ready", pids[0])]
    assert ("service ended", pids[0]) in told
    assert told[-1] == ("service ready again", pids[3])


async def test_a_final_status_ends_all_at_once(tmp_path: Path) -> None:
    with pytest.raises(ServiceFailed, match=r"^b ended with status 1; it wrote:\nb cannot work: no reason$"):
        async with Running([service("a", tmp_path), service("b", tmp_path, "die1")]):
            pass
    assert not log(tmp_path) or log(tmp_path)[-1] == "a end"  # it may not have come so far


async def test_of_two_that_fail_the_one_that_others_need_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Though it fails later; and no failure is left behind for asyncio to complain of."""
    with pytest.raises(ServiceFailed, match=r"^a ended with status 1; it wrote:\na cannot work: no reason$"):
        async with Running([service("a", tmp_path, "late-die1"), service("b", tmp_path, "die1")]):
            pass
    gc.collect()
    assert "never retrieved" not in caplog.text


async def test_a_final_status_ends_all_after_ready_too(tmp_path: Path) -> None:
    running = Running([service("b", tmp_path, "live-once"), service("a", tmp_path)])
    task = asyncio.create_task(running.supervisor.run(running.stopping, running.has_started))
    await running.started.wait()
    os.kill(started(tmp_path)["b"][0], signal.SIGKILL)
    with pytest.raises(ServiceFailed, match="b ended with status 2"):
        await task
    assert log(tmp_path)[-1] == "a end"


async def test_a_final_status_of_what_was_ready_ends_nothing(tmp_path: Path) -> None:
    """The service was ready before: one request may not take all services down."""
    async with Running([service("a", tmp_path), service("b", tmp_path)]) as running:
        os.kill(started(tmp_path)["b"][-1], signal.SIGUSR1)
        await eventually(lambda: running.reports.count("b ready again") == 1)
    assert any(report.startswith("b ended with status 1; starting it again in ") for report in running.reports)
    assert len(started(tmp_path)["a"]) == 1


@pytest.mark.parametrize("how", ["loses", "aborts"])
@pytest.mark.parametrize(("steady", "delays"), [(0.0, ["0.1", "0.1", "0.1"]), (3600.0, ["0.1", "0.2", "0.3"])])
async def test_a_gpu_that_fails_at_once_each_time_is_given_more_and_more_time(
    how: str, steady: float, delays: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_STEADY_SECONDS", steady)
    monkeypatch.setattr(supervisor, "restart_delay", lambda deaths: deaths / 10)
    async with Running([service("a", tmp_path), service("b", tmp_path, how)]) as running:
        for life in range(1, 4):
            os.kill(started(tmp_path)["b"][-1], signal.SIGUSR1)
            await eventually(lambda life=life: len(started(tmp_path)["b"]) > life)  # type: ignore[misc]
            await eventually(lambda life=life: running.reports.count("b ready again") == life)  # type: ignore[misc]
    ended = [report for report in running.reports if "failed" in report]
    assert ended == [f"b ended: the GPU failed; starting it again in {delay} s" for delay in delays]
    assert len(started(tmp_path)["a"]) == 1


async def test_gives_up_on_what_was_never_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gateway.cli.up.supervisor.restart_delay", lambda _: 0.0)
    with pytest.raises(ServiceFailed) as caught:
        async with Running([service("a", tmp_path), service("b", tmp_path, "die3")]):
            pass
    assert "b ended with status 3" in str(caught.value)
    assert str(caught.value).endswith("b cannot work: no reason")
    assert log(tmp_path)[-1] == "a end"
    assert capfd.readouterr().err.count("b cannot work") == 5


async def test_kills_what_does_not_end(tmp_path: Path) -> None:
    async with Running([service("a", tmp_path, "stubborn")], grace=0.3) as running:
        (pid,) = started(tmp_path)["a"]
    assert not psutil.pid_exists(pid)
    assert running.reports[-1] == "a did not end within 0.3 s; killing it"


@contextmanager
def unread_stderr() -> Iterator[None]:
    """Standard error is a pipe that nobody reads any more. Not a fixture: pytest sets it again before each test."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as unread, redirect_stderr(unread):
        yield


async def test_goes_on_where_nobody_reads_what_the_services_write(tmp_path: Path) -> None:
    """As in `agentmem up 2>&1 | head`: more than a pipe holds is taken from a service, or it would wait for ever."""
    with unread_stderr():
        async with Running([service("a", tmp_path), service("b", tmp_path, "chatty")]):
            assert set(started(tmp_path)) == {"a", "b"}
    assert log(tmp_path)[-2:] == ["b end", "a end"]


async def test_can_be_stopped_while_it_starts(tmp_path: Path) -> None:
    async def never() -> bool:
        return False

    slow = service("b", tmp_path)
    running = Running([service("a", tmp_path), Service("b", slow.module, slow.arguments, never, slow.environment)])
    task = asyncio.create_task(running.supervisor.run(running.stopping, running.has_started))
    await eventually(lambda: set(started(tmp_path)) == {"a", "b"})
    running.stopping.set()
    await task
    assert not running.started.is_set()
    assert log(tmp_path)[-2:] == ["b end", "a end"]


async def test_children_end_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.gateway.cli.up.supervise", str(tmp_path), cwd=ROOT
    )
    await eventually(lambda: set(started(tmp_path)) == {"one", "two"})
    pids = [pid for (pid,) in started(tmp_path).values()]
    process.kill()
    await process.wait()
    await eventually(lambda: not any(alive(pid) for pid in pids))
    assert sorted(log(tmp_path)[-2:]) == ["one end", "two end"]  # by SIGTERM, not by force


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_delays_grow_to_a_limit() -> None:
    delays = [restart_delay(deaths) for deaths in range(1, 200)]
    assert delays[:3] == [0.2, 0.4, 0.8]
    assert delays == sorted(delays)
    assert delays[-1] == 10.0
