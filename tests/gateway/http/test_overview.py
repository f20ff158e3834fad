"""GET /v1/overview, on a real socket, of pages that real servers give."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentmem.process.exposition import MetricsServer
from gateway.http import overview
from tests.gateway.running import running
from tests.gateway.scripted import ScriptedWorker
from tests.gateway.secured import add_key, secured, showing

from .example import NOON, STARTED, Processes, at_work


@pytest.fixture
def processes() -> Processes:
    made = Processes()
    made.work()
    return made


@pytest.fixture
def pages(processes: Processes) -> Iterator[dict[str, str]]:
    """The settings that say where worker and store have their pages."""
    servers = {name: MetricsServer("127.0.0.1:0", getattr(processes, name).registry) for name in ("worker", "store")}
    yield {f"{name}_metrics": server.address for name, server in servers.items()}
    for server in servers.values():
        server.stop()


@pytest.fixture
async def http(run_dir: Path, pages: dict[str, str]) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        running(run_dir, **pages) as gateway,
        httpx.AsyncClient(base_url=f"http://{gateway.addresses['http']}", timeout=30) as client,
    ):
        yield client


async def told(http: httpx.AsyncClient) -> Any:
    answer = await http.get("/v1/overview")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_what_the_pages_say(worker: ScriptedWorker, http: httpx.AsyncClient) -> None:
    found = await told(http)
    gateway, told_worker, store = found["processes"]
    assert [one["service"] for one in found["processes"]] == ["gateway", "worker", "store"]
    assert gateway["version"] and "store" in gateway["why"], "there is none behind its socket"
    assert (told_worker["state"], told_worker["why"], told_worker["start_time_seconds"]) == ("up", None, STARTED)
    assert (store["state"], store["memory_bytes"], store["requests"]["OK"]) == ("up", 84_200_000, 100)
    demo, large = found["models"]
    assert (demo["model_id"], demo["loaded"], demo["running"], demo["waiting"]) == ("demo", True, 3, 1)
    assert demo["prompt_tokens"] == {"hot": 4100, "warm": 0, "computed": 900}
    assert (demo["generated_tokens"], demo["turns"], demo["evictions"]) == (600, {"stop": 2}, {"capacity": 4})
    assert (demo["pool_blocks"], demo["hot_agents"]) == ({"free": 392, "used": 120}, 12)
    assert (large["loaded"], large["time_to_first_token"], large["inter_token_latency"]) == (False, {}, None)
    assert found["agents_by_tier"] == {"hot": 12, "warm": 40, "remote": 7, "none": 3}
    assert found["disk"] == {
        "bytes": {"blocks": 900_000_000, "ledger": 5_000_000, "windows": 60_000_000},
        "limit_bytes": 1_000_000_000,
        "free_bytes": 80_000_000_000,
        "free_floor_bytes": 5_000_000_000,
        "evictions": {"capacity": 5, "ttl": 1},
    }
    assert (found["remote"], found["quarantined"]) == (None, {"digest": 1, "truncated": 2})
    assert found["workflows_running"] == 0


async def test_rates_are_of_the_time_since_the_reading_before(
    worker: ScriptedWorker, http: httpx.AsyncClient, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "_FRESH_SECONDS", 0.0)
    first = await told(http)
    assert (first["interval_seconds"], first["time_to_first_token"]) == (None, {})
    assert {one["requests_per_second"] for one in first["processes"]} == {None}
    assert first["models"][0]["generated_tokens_per_second"] is None
    processes.work()
    second = await told(http)
    seconds = second["interval_seconds"]
    assert second["models"][0]["generated_tokens_per_second"] * seconds == pytest.approx(500)
    assert second["processes"][2]["cpu_cores"] == 0
    assert [(tier, one["count"]) for tier, one in second["time_to_first_token"].items()] == [("hot", 20), ("none", 1)]
    assert second["time_to_first_token_since_start"]["hot"]["count"] == 40
    assert (await told(http))["models"][0]["generated_tokens_per_second"] == 0


def test_two_seconds_of_work() -> None:
    found = at_work()
    gateway, told_worker, _ = found["processes"]
    assert (gateway["requests_per_second"], gateway["failures_per_second"], gateway["cpu_cores"]) == (30, 3.5, 0.25)
    assert (told_worker["requests_per_second"], told_worker["failures_per_second"]) == (0, 0)
    demo, large = found["models"]
    assert demo["prompt_tokens_per_second"] == {"hot": 1800, "warm": 0, "computed": 200}
    assert (demo["generated_tokens_per_second"], demo["loaded_bytes_per_second"]) == (250, 12e6)
    assert (list(demo["time_to_first_token"]), demo["inter_token_latency"]["count"]) == (["hot", "none"], 499)
    hot = demo["time_to_first_token"]["hot"]
    assert (hot["count"], found["time_to_first_token"]["hot"]) == (20, hot)
    assert 0.01 < hot["p50_seconds"] < hot["p95_seconds"] < hot["p99_seconds"] <= 0.025
    assert large["prompt_tokens_per_second"] == {"hot": 0, "warm": 0, "computed": 0}
    assert (large["time_to_first_token"], large["inter_token_latency"]) == ({}, None)


def test_without_two_pages_of_one_process_there_are_no_rates() -> None:
    down, page = "nothing listens there", Processes()
    page.worker.set("process_start_time_seconds", STARTED + 60)
    again = page.worker.page()
    for instead in (down, again):
        found = at_work(worker=instead)
        assert (found["processes"][1]["requests_per_second"], found["time_to_first_token"]) == (None, {})
        assert found["processes"][0]["requests_per_second"] == 30
        if instead is again:
            assert {one["prompt_tokens_per_second"] for one in found["models"]} == {None}
    missed = overview.overview_of({"worker": again}, {"worker": down}, 2.0, NOON)
    assert missed["processes"][0]["cpu_cores"] is None


def test_who_is_not_ready_says_which_process_it_misses() -> None:
    processes = Processes()
    processes.worker.set("agentmem_ready", 0)
    processes.gateway.set("agentmem_peer_up", 0, peer="worker")
    states = [(one["state"], one["why"]) for one in at_work(**processes.pages())["processes"]]
    assert states == [
        ("up", "does not reach the worker"),
        ("not_ready", "it says that it is not serving; its log says why"),
        ("up", None),
    ]


async def test_all_who_ask_are_told_of_one_reading(worker: ScriptedWorker, http: httpx.AsyncClient) -> None:
    answers = await asyncio.gather(*(told(http) for _ in range(8)))
    assert len({answer["time"] for answer in answers}) == 1


async def test_a_page_that_does_not_answer_is_left_out(
    worker: ScriptedWorker, run_dir: Path, pages: dict[str, str]
) -> None:
    async with (
        running(run_dir, store_metrics=pages["store_metrics"]) as gateway,
        showing(gateway, "") as (http, _),
    ):
        found = await told(http)
    states = {one["service"]: (one["state"], one["why"]) for one in found["processes"]}
    assert states["worker"][0] == "down" and "is not known; set --worker-metrics" in states["worker"][1]
    assert (found["models"], found["disk"]["limit_bytes"]) == (None, 1_000_000_000)
    assert found["agents_by_tier"] == {"warm": 40, "remote": 7, "none": 3}


async def test_it_is_for_admins(worker: ScriptedWorker, run_dir: Path, pages: dict[str, str]) -> None:
    plain, admin = add_key(run_dir), add_key(run_dir, admin=True)
    async with (
        secured(run_dir, **pages) as gateway,
        showing(gateway, plain) as (http, _),
        showing(gateway, admin) as (admins, _),
    ):
        assert (await http.get("/v1/overview")).status_code == 403
        assert (await told(admins))["models"]
