"""All figures of an example, through the history, as the command makes them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gateway.cli.top import measure
from gateway.cli.top.measure import Figures, History, silent
from gateway.pages import Page
from tests.deploy.metrics import documented

from .example import NODES, Processes, agent, at_work, node
from .pages import DOWN, Process, reading

SCHEMA = json.loads((Path(__file__).parents[4] / "deploy" / "top.schema.json").read_text(encoding="utf-8"))


class Shown(dict[str, Any]):
    """An object of JSON, whose members are attributes as well."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


def shown(figures: Figures) -> Any:
    """What is written of them, which is as the schema says."""
    told = json.loads(json.dumps(figures), object_hook=Shown)
    jsonschema.Draft202012Validator(SCHEMA).validate(told)
    return told


def test_models() -> None:
    figures = shown(at_work())
    demo, big = figures.models
    assert (demo.model_id, demo.state, demo.default) == ("demo", "loaded", True)
    assert (demo.running, demo.waiting, demo.hot_agents) == (3, 1, 12)
    assert demo.decode_tokens_per_second == 250
    assert demo.prefill_tokens_per_second == 200
    assert demo.requests_per_second == 0.5
    assert demo.reused_tokens_per_second == 1800
    assert demo.hit_rate == 0.9
    assert (demo.pool_used_blocks, demo.pool_free_blocks) == (120, 392)
    assert list(demo.time_to_first_token) == ["hot", "none"]
    hot = demo.time_to_first_token["hot"]
    assert hot.count == 20
    assert 0.01 < (hot.p50_seconds or 0) < (hot.p95_seconds or 0) <= 0.025
    assert demo.inter_token_latency is not None
    assert demo.inter_token_latency.count == 499
    assert (big.model_id, big.state, big.default) == ("llama-3.1-8b", "registered", False)
    assert (big.running, big.decode_tokens_per_second, big.hit_rate, big.pool_used_blocks) == (0, 0, None, None)


def test_processes() -> None:
    figures = shown(at_work())
    gateway, worker, store = figures.processes
    assert [one.service for one in figures.processes] == ["gateway", "worker", "store"]
    assert {(one.state, one.why, one.version, one.restarts) for one in figures.processes} == {("up", None, "0.1.0", 0)}
    assert gateway.requests_per_second == 30
    assert gateway.failures_per_second == 3.5
    assert worker.requests_per_second == worker.failures_per_second == 0
    assert gateway.cpu_cores == 0.25
    assert store.uptime_seconds == pytest.approx(7202)
    assert store.memory_bytes == 84_200_000


def test_cache_and_agents() -> None:
    figures = shown(at_work())
    told = figures.cache
    assert told.disk_bytes == {"blocks": 900_000_000, "ledger": 5_000_000, "windows": 60_000_000}
    assert (told.disk_limit_bytes, told.disk_free_bytes, told.disk_free_floor_bytes) == (10**9, 80 * 10**9, 5 * 10**9)
    assert (told.load_bytes_per_second, told.store_bytes_per_second) == (12e6, 0)
    assert told.evictions == {"hot capacity": 2, "warm ttl": 1}
    assert told.quarantined_since_start == {"digest": 1, "truncated": 2}
    assert list(told.agents_by_tier.items()) == [("hot", 12), ("warm", 40), ("remote", 7), ("none", 3)]
    assert [(one.agent_id, one.tier) for one in figures.recent_agents] == [("bob", "hot"), ("ada", "warm")]
    assert figures.recent_agents[0].last_turn == "2026-01-02T11:59:55.000+00:00"


def test_the_first_reading_has_gauges_and_no_rates() -> None:
    figures = shown(History(10).add(Processes().read(0.0)))
    assert figures.interval_seconds == 0
    assert figures.models[0].running == 3
    assert figures.models[0].hit_rate is None
    assert figures.models[0].decode_tokens_per_second is None
    assert figures.processes[0].requests_per_second is None
    assert figures.cache.evictions == {}
    assert figures.cache.quarantined_since_start == {"digest": 1}


def test_a_worker_that_is_down_leaves_what_the_others_know() -> None:
    figures = shown(at_work(pages={"worker": DOWN}))
    worker = figures.processes[1]
    assert (worker.state, worker.why, worker.requests_per_second) == ("down", DOWN, None)
    assert [(one.model_id, one.state, one.running) for one in figures.models] == [
        ("demo", "loaded", None),
        ("llama-3.1-8b", "registered", None),
    ]
    assert figures.models[0].time_to_first_token == {}
    assert figures.cache.agents_by_tier == {"warm": 40, "remote": 7, "none": 3}
    assert figures.cache.load_bytes_per_second is None
    assert figures.cache.evictions == {"warm ttl": 1}
    assert not silent(figures)


def test_a_gateway_that_is_down_leaves_the_models_that_the_worker_names() -> None:
    gone = "no gateway answers"
    figures = shown(at_work(pages={"gateway": DOWN}, models=gone, agents=gone))
    assert figures.models_error == figures.agents_error == gone
    assert [(one.model_id, one.state, one.running) for one in figures.models] == [
        ("demo", "loaded", 3),
        ("llama-3.1-8b", None, 0),
    ]
    assert figures.recent_agents == []
    assert not silent(figures)
    assert silent(at_work(pages={"gateway": DOWN, "worker": DOWN, "store": DOWN}, models=gone))


def test_who_is_not_ready_says_which_process_it_misses() -> None:
    processes, history = Processes(), History(10)
    processes.worker.set("agentmem_ready", 0)
    processes.gateway.set("agentmem_peer_up", 0, peer="worker")
    gateway, worker, store = shown(history.add(processes.read(0.0))).processes
    assert (gateway.state, gateway.why) == ("up", "does not reach the worker")
    assert (worker.state, worker.why) == ("not_ready", "it says that it is not serving; its log says why")
    assert (store.state, store.why) == ("up", None)
    processes.worker.set("agentmem_peer_up", 0, peer="store")
    assert shown(history.add(processes.read(2.0))).processes[1].why == "does not reach the store"


def test_agents_are_absent_where_nobody_wants_them() -> None:
    figures = shown(at_work(agents=None))
    assert (figures.recent_agents, figures.agents_error) == ([], None)


def test_an_agent_without_a_turn() -> None:
    new = agent("new", 0)
    new.update_time.Clear()
    figures = shown(at_work(most_agents=1, agents=[new, agent("old", 99999)]))
    assert [one.agent_id for one in figures.recent_agents] == ["old"]
    assert shown(at_work(agents=[new])).recent_agents[0].last_turn is None


def test_the_schema_describes_every_name() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    for part in (SCHEMA, *SCHEMA["$defs"].values()):
        assert all(figure.get("description") for figure in part["properties"].values()), part
        assert part["required"] == list(part["properties"])
        assert part["additionalProperties"] is False


def test_every_metric_that_is_read_is_exported() -> None:
    source = Path(measure.__file__).read_text(encoding="utf-8")
    read = set(re.findall(r'"((?:agentmem|grpc|process)_\w+)"', source))
    assert len(read) > 20
    assert read - {"grpc_code"} <= documented()


def worker(tokens: int, started: float, at: float) -> Page:
    process = Process(started)
    process.set("agentmem_num_requests_running", 1, model_id="demo")
    process.count("agentmem_generation_tokens", tokens, model_id="demo")
    return process.page(at)


def watched(*pages: tuple[float, Page | str]) -> list[tuple[float | None, float | None, int]]:
    """Of each reading: decoded tokens per second, over how many seconds, and restarts of the worker so far."""
    history = History(0)
    found = []
    for at, page in pages:
        figures = shown(history.add(reading(at, {"worker": page}, models=DOWN)))
        rate = figures.models[0].decode_tokens_per_second if figures.models else None
        found.append((rate, figures.processes[1].interval_seconds, figures.processes[1].restarts))
    return found


def test_rates_are_of_the_time_between_the_pages() -> None:
    assert watched((0, worker(5, 1.0, 0)), (2, worker(9, 1.0, 2.5))) == [(None, None, 0), (4 / 2.5, 2.5, 0)]


def test_a_page_that_was_missed_is_compared_with_the_one_before() -> None:
    found = watched((0, worker(5, 1.0, 0.0)), (2, DOWN), (4, worker(25, 1.0, 4.0)))
    assert found == [(None, None, 0), (None, None, 0), (5, 4, 0)]


def test_a_restart_is_counted_once_and_what_came_after_it_is_all_new() -> None:
    pages = [(0, worker(50, 1.0, 0.0)), (2, DOWN), (4, DOWN), (6, worker(60, 5.0, 6.0)), (8, worker(61, 5.0, 8.0))]
    found = watched(*pages, (10, DOWN), (12, worker(1, 11.0, 12.0)))
    assert found[3] == (30, 2, 1), "in the two seconds since it was down"
    assert [restarts for _, _, restarts in found[4:]] == [1, 1, 2]


def test_nodes() -> None:
    states = [(node.name, node.state, node.turns, node.models) for node in shown(at_work(nodes=NODES)).nodes]
    assert states == [("a", "ready", 3, ["demo"]), ("b", "draining", 1, ["demo"]), ("c", "gone", 0, [])]
    (early,) = shown(at_work(nodes=[node("d", ready=False)])).nodes
    assert (early.state, early.heard_ago_seconds, early.version) == ("not_ready", 0.4, "0.1.0")


@pytest.mark.parametrize(("nodes", "error"), [(None, None), ("it needs a key", "it needs a key")])
def test_where_no_nodes_are_known(nodes: str | None, error: str | None) -> None:
    figures = shown(at_work(nodes=nodes))
    assert (figures.nodes, figures.nodes_error) == (None, error)
