"""GET /v1/overview/history: points that the gateway keeps while nobody looks, of pages that real servers give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from agentmem.process.exposition import MetricsServer
from gateway.http import history
from gateway.http.charts import point
from gateway.http.history import INTERVAL_SECONDS, WINDOW_SECONDS, History
from tests.gateway.running import eventually, running, settings
from tests.gateway.scripted import ScriptedWorker
from tests.gateway.secured import add_key, secured, showing

from .example import Processes, at_work


def test_a_point_of_two_seconds_of_work() -> None:
    overview = at_work()
    found = point(overview)
    assert found["time"] == overview["time"]
    assert found["prompt_tokens_share"] == {"hot": pytest.approx(0.9), "warm": 0, "remote": 0}
    first = found["time_to_first_token_p50_seconds"]
    assert first["hot"] == overview["time_to_first_token"]["hot"]["p50_seconds"]
    assert (first["warm"], first["remote"]) == (None, None) and first["none"] > 1
    assert (found["generated_tokens_per_second"], found["running"], found["waiting"]) == (250, 3, 1)
    assert found["pool_used_share"] == 120 / 512


def test_a_worker_that_is_down_leaves_a_gap() -> None:
    values = {**point(at_work(worker="nothing listens there"))}
    assert values.pop("time")
    assert values.pop("prompt_tokens_share") == {"hot": None, "warm": None, "remote": None}
    assert set(values.pop("time_to_first_token_p50_seconds").values()) == {None}
    assert set(values.values()) == {None}


async def test_points_are_kept_while_nobody_looks(
    worker: ScriptedWorker, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "INTERVAL_SECONDS", 0.01)
    processes = Processes()
    server = MetricsServer("127.0.0.1:0", processes.worker.registry)
    try:
        async with (
            running(run_dir, worker_metrics=server.address) as gateway,
            httpx.AsyncClient(base_url=f"http://{gateway.addresses['http']}", timeout=30) as http,
        ):
            kept = gateway.http.history._points
            await eventually(lambda: len(kept) > 2)
            processes.work()
            await eventually(lambda: any(each["generated_tokens_per_second"] for each in kept))
            found: Any = (await http.get("/v1/overview/history")).raise_for_status().json()
        times = [each["time"] for each in found["points"]]
        assert times == sorted(times)
        worked = next(each for each in found["points"] if each["generated_tokens_per_second"])
        assert worked["prompt_tokens_share"]["hot"] == pytest.approx(0.9)
        assert (worked["running"], worked["pool_used_share"]) == (3, 120 / 512)
    finally:
        server.stop()


async def test_an_error_ends_neither_points_nor_the_gateway(
    worker: ScriptedWorker, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = iter([ZeroDivisionError, KeyError])

    def failing(overview: Any) -> Any:
        if failure := next(failures, None):
            raise failure
        return point(overview)

    monkeypatch.setattr(history, "INTERVAL_SECONDS", 0.01)
    monkeypatch.setattr(history, "point", failing)
    server = MetricsServer("127.0.0.1:0", Processes().worker.registry)
    try:
        async with running(run_dir, worker_metrics=server.address) as gateway:
            await eventually(lambda: len(gateway.http.history._points) > 2)
            assert next(failures, None) is None
            assert not gateway._recording.done()
    finally:
        server.stop()


def test_its_memory_is_bounded(run_dir: Path) -> None:
    kept = History(settings(run_dir))._points
    assert kept.maxlen == WINDOW_SECONDS // INTERVAL_SECONDS == 180


async def test_without_pages_of_metrics_it_is_empty(worker: ScriptedWorker, run_dir: Path) -> None:
    async with (
        running(run_dir) as gateway,
        httpx.AsyncClient(base_url=f"http://{gateway.addresses['http']}", timeout=30) as http,
    ):
        assert (await http.get("/v1/overview/history")).json() == {"interval_seconds": 5, "points": []}


async def test_it_is_for_admins(worker: ScriptedWorker, run_dir: Path) -> None:
    plain = add_key(run_dir)
    async with secured(run_dir) as gateway, showing(gateway, plain) as (http, _):
        assert (await http.get("/v1/overview/history")).status_code == 403
