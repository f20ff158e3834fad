"""Workflows over REST, on a real socket before a scripted worker and a real store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.app import Gateway
from tests.cache_service import conftest as stores
from tests.gateway.running import events, eventually, running, settings
from tests.gateway.scripted import ScriptedWorker, endless
from tests.gateway.secured import showing

FILE = """\
workflow: talk
variables: {topic: boats}
agents: {a: {system: You are a.}, b: {}}
phases: [{name: only, agents: [a, b], prompts: "Speak of ${topic}."}]
"""
RUNS = "/v1/workflows"


@pytest.fixture
async def store(run_dir: Path) -> AsyncIterator[None]:
    async with stores.running(run_dir):
        yield


@asynccontextmanager
async def serving(run_dir: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with running(run_dir) as gateway, showing(gateway, "") as (http, _):
        yield http


async def told(http: httpx.AsyncClient, method: str, url: str, **sent: Any) -> list[tuple[str, Any]]:
    answer = await http.request(method, url, **sent)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    return events(answer.text) if answer.text else []


async def test_a_run_from_its_check_to_its_end(worker: ScriptedWorker, store: None, run_dir: Path) -> None:
    async with serving(run_dir) as http:
        checked = (await http.post(f"{RUNS}/check", json={"definition_yaml": FILE})).json()
        assert checked == {"mistakes": [], "name": "talk", "agents": ["a", "b"], "phases": ["only"]}
        assert worker.requests == []

        asked = {"json": {"definition_yaml": FILE, "variables": {"topic": "keys"}}, "headers": {"idempotency-key": "r"}}
        heard = await told(http, "POST", RUNS, **asked)
        names = [name for name, _ in heard]
        assert (names[0], names[-1], names.count("agent_spoke")) == ("started", "finished", 2)
        assert heard[-1][1]["finished"]["workflow"]["state"] == "succeeded"
        spoken = next(said for name, said in heard if name == "agent_spoke")
        assert (spoken["agent_spoke"]["agent_id"], spoken["agent_spoke"]["text"]) == ("a", "Hello 🌍")
        assert "Speak of keys." in str(worker.generated[0])
        turns = len(worker.generated)

        logged = [one for one in heard if one[0] not in ("agent_speaking", "agent_delta")]
        assert await told(http, "POST", RUNS, **asked) == logged
        assert len(worker.generated) == turns, "the same key is the same run"
        changed = {**asked, "json": {"definition_yaml": FILE}}
        assert (await http.post(RUNS, **changed)).json()["error"]["param"] == "Idempotency-Key"

        run = heard[0][1]["started"]["workflow"]["workflow_id"]
        assert [one["workflow_id"] for one in (await http.get(RUNS)).json()["workflows"]] == [run]
        described = (await http.get(f"{RUNS}/{run}")).json()["workflow"]
        assert (described["state"], described["turns"]) == ("succeeded", 2)
        assert [agent["name"] for agent in described["agents"]] == ["a", "b"]
        assert await told(http, "GET", f"{RUNS}/{run}/events") == logged
        later = await told(http, "GET", f"{RUNS}/{run}/events?after_sequence=2")
        assert later == [one for one in logged if one[1]["sequence"] > 2]
        assert (await http.post(f"{RUNS}/{run}/cancel", json={})).json()["workflow"]["state"] == "succeeded"
        assert (await http.delete(f"{RUNS}/{run}")).json() == {}
        for url in (f"{RUNS}/{run}", f"{RUNS}/{run}/events"):
            assert (await http.get(url)).status_code == 404


async def test_mistakes_have_their_places(worker: ScriptedWorker, run_dir: Path) -> None:
    async with serving(run_dir) as http:
        text = FILE.replace("${topic}", "${subject}")
        checked = (await http.post(f"{RUNS}/check", json={"definition_yaml": text})).json()
        [mistake] = checked["mistakes"]
        at = text.splitlines()[3].index("prompts: ") + len("prompts: ") + 1
        assert (mistake["line"], mistake["column"], mistake["field"]) == (4, at, "phases[0].prompts")
        assert (checked["name"], checked["agents"]) == ("", [])
        assert (await http.post(RUNS, json={"definition_yaml": text})).status_code == 400
        assert (await http.post(RUNS, json={"resume_workflow_id": "wf-1"})).status_code == 400


@pytest.mark.slow
async def test_who_watches_resumes_nothing(worker: ScriptedWorker, store: None, run_dir: Path) -> None:
    worker.script = endless
    gateway = Gateway(settings(run_dir))
    await gateway.start()
    async with httpx.AsyncClient(base_url=f"http://{gateway.addresses['http']}", timeout=30) as http:
        running_on = asyncio.create_task(http.post(RUNS, json={"definition_yaml": FILE}))
        await eventually(lambda: worker.running == 1)
        [listed] = (await http.get(RUNS)).json()["workflows"]
        assert listed["state"] == "running"
        run = f"{RUNS}/{listed['workflow_id']}"
        async with http.stream("GET", f"{run}/events") as watched:
            lines = watched.aiter_lines()
            assert await anext(lines) == "event: started"
        assert (await http.delete(run)).status_code == 400
        await gateway.stop()
        assert events((await running_on).text)[-1][0] == "error"
    asked = len(worker.generated)
    async with serving(run_dir) as http:
        names = [name for name, _ in await told(http, "GET", f"{run}/events")]
        assert names[0] == "started"
        assert "finished" not in names
        assert (await http.get(run)).json()["workflow"]["state"] == "interrupted"
        assert len(worker.generated) == asked
        last = (await told(http, "GET", f"{run}/events"))[-1][1]["sequence"]
        assert await told(http, "GET", f"{run}/events?after_sequence={last}") == []
        resuming = asyncio.create_task(http.post(f"{run}/resume", json={"after_sequence": last}))
        await eventually(lambda: len(worker.generated) > asked)
        assert (await http.post(f"{run}/cancel", json={})).json()["workflow"]["state"] == "cancelled"
        resumed = events((await resuming).text)
        assert resumed[-1][1]["finished"]["workflow"]["state"] == "cancelled"
        assert (await http.get("/v1/workflows/wf-none/events")).status_code == 404
