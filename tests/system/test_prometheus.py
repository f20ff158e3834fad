"""A real Prometheus scrapes a live stack: every panel and every rule has data."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import grpc
import httpx
import pytest

from agentmem.v1 import model_pb2, types_pb2
from tests import prometheus, s3
from tests.dashboards import NAMES, Dashboard
from tests.prometheus import Prometheus, Series, values
from tests.promql import filled_in, with_bool
from tests.recorded import MISSED
from tests.system.client import Client, chat, refused
from tests.system.cluster_dashboard import SERVICES, alerts_compare, needs_a_cluster, scraped
from tests.system.load import complete
from tests.system.stack import Stack
from tests.tiny_models import write_llama

ARGUMENTS = {"max_tokens": 6, "sampling": types_pb2.Sampling(ignore_eos=True)}
INTERVAL = 2.0
"""Seconds between scrapes: shorter ones would be much of the work on a machine of two cores."""


@dataclass
class Recorded:
    asked: Prometheus
    begin: float
    end: float

    def drawn(self, expression: str) -> list[Series]:
        return self.asked.query_range(expression, self.begin, self.end, INTERVAL)

    def at_end(self, expression: str) -> list[Series]:
        return self.asked.query(expression, self.end)


@pytest.fixture
def recorded(tmp_path: Path, s3_endpoint: str) -> Iterator[Recorded]:
    try:
        prometheus.programs()
    except prometheus.Unavailable as problem:
        pytest.skip(str(problem))
    bucket = s3.Bucket(s3_endpoint)
    bucket.create()
    with pytest.MonkeyPatch.context() as environment, ExitStack() as running:
        for name, value in s3.ENVIRONMENT.items():
            environment.setenv(name, value)
        environment.setenv("AGENTMEM_STORE_REMOTE", bucket.location())
        environment.setenv("AGENTMEM_STORE_REMOTE_ENDPOINT", bucket.endpoint)
        yield asyncio.run(_record(tmp_path, running))


async def _record(folder: Path, running: ExitStack) -> Recorded:
    stack = Stack(f"tiny={write_llama(folder / 'model')}")
    try:
        await stack.up(*SERVICES)
        addresses = {name: f"127.0.0.1:{stack.ports[name]}" for name in SERVICES}
        config = prometheus.shipped_config(folder, {"local": addresses}, f"{INTERVAL:g}s")
        asked = running.enter_context(prometheus.running(config, folder))
        await scraped(asked, len(SERVICES))
        begin = time.time()
        for round_ in range(2):  # what has a series only since the first time grows with the second
            await _load(stack, round_)
            await scraped(asked, len(SERVICES))
        await scraped(asked, len(SERVICES))  # rules look at what was scraped before
        return Recorded(asked, begin, time.time())
    finally:
        await stack.destroy()


async def _load(stack: Stack, round_: int) -> None:
    """New, hot, warm and remote turns, a damaged file, a changed history, HTTP and gRPC, and mistakes of callers.

    Prompts are too short for prefill's speed to be measured, so what is remote is always fetched.
    """
    client = await stack.client("gateway")
    for name in ("hot", "warm", "remote", "damaged"):
        await client.say(f"{name}-{round_}", f"I am {name} {round_}. " * 4, **ARGUMENTS)
        await stack.on_disk(f"{name}-{round_}")
    while await stack.metric("store", "agentmem_remote_backlog", operation="uploads"):
        await asyncio.sleep(0.05)
    await client.say(f"hot-{round_}", "Go on.", **ARGUMENTS)
    for name, tier in (("warm", types_pb2.TIER_HOT), ("remote", types_pb2.TIER_WARM), ("damaged", types_pb2.TIER_HOT)):
        key = client.key(f"{name}-{round_}")
        if name == "damaged":
            first = (await stack.on_disk(key.agent_id))[0]
            damaged = bytearray(first.read_bytes())
            damaged[-1] ^= 1
            first.write_bytes(damaged)
        await client.evict(key.agent_id, tier)
        turn = await client.say(key.agent_id, "Go on.", **ARGUMENTS)
        assert name == "damaged" or set(turn.cached) == {name}, turn.started
    await client.turn(f"hot-{round_}", messages=chat(("user", f"Something else, {round_}")), **ARGUMENTS)
    await _mistakes(stack, client)
    await client.models.UnloadModel(model_pb2.UnloadModelRequest(model_id=client.model), timeout=30)
    await complete(stack, "over HTTP", [("user", f"Hello, {round_}")], max_tokens=4)


async def _mistakes(stack: Stack, client: Client) -> None:
    await refused(client.agent("nobody"), grpc.StatusCode.NOT_FOUND)
    body = {"model": "unknown", "messages": [{"role": "user", "content": "Hello"}]}
    async with httpx.AsyncClient(base_url=stack.url, timeout=30) as http:
        assert (await http.post("/v1/chat/completions", json=body)).status_code == 404
        body["model"] = stack.model
        assert (await http.post("/v1/chat/completions", json=body | {"max_tokens": 4})).status_code == 200


@pytest.mark.slow
def test_every_panel_and_every_rule_has_data(recorded: Recorded, subtests: pytest.Subtests) -> None:
    """One test, for the processes of a run would record each for itself what several tests ask about."""
    for name in NAMES:
        with subtests.test(dashboard=name):
            every_panel_has_data(recorded, name)
    for check in (
        every_recording_rule_has_data_and_is_never_nan,
        every_alert_compares_data,
        what_has_no_data_is_noticed,
        alerts_under_load_are_those_of_what_was_broken,
        alerts_fire_when_the_stack_is_gone,
    ):
        with subtests.test(check.__name__):
            check(recorded)


def every_panel_has_data(recorded: Recorded, name: str) -> None:
    board = Dashboard(name)
    variables: dict[str, list[str]] = {}
    for variable, query in board.queries.items():
        asked = re.fullmatch(r"label_values\((.+), (\w+)\)", query)
        assert asked is not None, query
        variables[variable] = recorded.asked.label_values(asked[2], filled_in(asked[1], variables, {}))
    assert variables == {"instance": ["local"], "model": ["demo", "tiny"]} or "model" not in board.queries, variables
    intervals = {
        "__rate_interval": f"{4 * INTERVAL:g}s",  # as Grafana has it: at least four scrapes
        "__range": f"{recorded.end - recorded.begin:.0f}s",
    }
    empty = [
        (title, expression)
        for title, expression in board.expressions
        if not needs_a_cluster(expression) and not values(recorded.drawn(filled_in(expression, variables, intervals)))
    ]
    assert not empty, f"{len(empty)} of {len(board.expressions)} expressions have no data"


def every_recording_rule_has_data_and_is_never_nan(recorded: Recorded) -> None:
    groups = recorded.asked.get("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"] if rule["type"] == "recording"]
    assert len(rules) > 50
    for rule in rules:
        assert rule["health"] == "ok", rule
        for expression in (rule["query"], rule["name"]):
            assert values(recorded.at_end(expression)), f"no data: {expression}"
        if not rule["name"].startswith("vllm:"):
            drawn = [value for _, points in recorded.drawn(rule["name"]) for _, value in points]
            assert not any(math.isnan(value) for value in drawn), rule["name"]


def every_alert_compares_data(recorded: Recorded) -> None:
    alerts_compare(recorded.asked, recorded.end, of_clusters=False)


def what_has_no_data_is_noticed(recorded: Recorded) -> None:
    assert not values(recorded.drawn("agentmem_nothing"))
    assert not values(recorded.drawn("0 * agentmem_ready / 0")), "NaN is none"
    assert not values(recorded.at_end(with_bool("agentmem_ready > agentmem_nothing")))


def alerts_under_load_are_those_of_what_was_broken(recorded: Recorded) -> None:
    drawn = recorded.drawn('ALERTS{alertstate="firing"}')
    assert {labels["alertname"] for labels, _ in drawn} - MISSED == {"AgentmemQuarantineGrows"}


def alerts_fire_when_the_stack_is_gone(recorded: Recorded) -> None:
    expected = {("AgentmemProcessDown", service) for service in SERVICES}
    deadline = time.monotonic() + 60
    while True:
        alerts = recorded.asked.get("alerts")["alerts"]
        firing = {(a["labels"]["alertname"], a["labels"].get("service", "")) for a in alerts if a["state"] == "firing"}
        if firing >= expected | {("AgentmemStoreUnreachable", ""), ("AgentmemWorkerUnreachable", "")}:
            return
        assert time.monotonic() < deadline, firing
        time.sleep(0.2)
