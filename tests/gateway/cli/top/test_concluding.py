"""All figures of an example, through the history, as the command makes them."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from gateway.cli.top.concluding import conclude
from gateway.cli.top.figures import Figures, HitRate, Pool, Tokens
from gateway.cli.top.history import History
from gateway.cli.top.reading import Silence, latest

from .example import Processes, agent, at_work
from .pages import ADDRESSES, DOWN

SCHEMA = json.loads((Path(__file__).parents[4] / "deploy" / "top.schema.json").read_text(encoding="utf-8"))


def validated(figures: Figures) -> Figures:
    """They are what the schema says, on the wire."""
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(json.dumps(figures.model_dump(mode="json"))))
    return figures


def test_models() -> None:
    figures = validated(at_work())
    demo, big = figures.models
    assert (demo.model_id, demo.state, demo.default) == ("demo", "loaded", True)
    assert (demo.running, demo.waiting, demo.batch_size, demo.hot_agents) == (3, 1, 3, 12)
    assert demo.decode_tokens_per_second == 250
    assert demo.prefill_tokens_per_second == 200
    assert demo.requests_per_second == 0.5
    assert demo.hit_rate == HitRate(interval=0.9, since_start=0.82)
    assert demo.tokens == Tokens(prompt=5000, reused={"hot": 4100}, generated=600)
    assert demo.pool == Pool(used_blocks=120, free_blocks=392)
    assert list(demo.time_to_first_token) == ["hot", "none"]
    hot = demo.time_to_first_token["hot"]
    assert hot.count == 20
    assert 0.01 < (hot.p50_seconds or 0) < (hot.p95_seconds or 0) <= 0.025
    assert demo.inter_token_latency is not None
    assert demo.inter_token_latency.count == 499
    assert (big.model_id, big.state, big.default) == ("llama-3.1-8b", "registered", False)
    assert (big.running, big.decode_tokens_per_second, big.hit_rate.interval, big.pool) == (0, 0, None, None)
    assert big.hit_rate.since_start == 0.5


def test_processes_and_doors() -> None:
    figures = at_work()
    gateway, worker, store = figures.processes
    assert [one.service for one in figures.processes] == ["gateway", "worker", "store"]
    assert {(one.state, one.why, one.version, one.restarts) for one in figures.processes} == {("up", None, "0.1.0", 0)}
    assert gateway.address == "h:1"
    assert gateway.rpcs_per_second == 20
    assert gateway.failed_rpcs_per_second == 2
    assert worker.rpcs_per_second == worker.failed_rpcs_per_second == 0
    assert gateway.cpu_cores == 0.25
    assert store.uptime_seconds == pytest.approx(7202)
    assert store.memory_bytes == 84_200_000
    assert gateway.peers == {"store": True, "worker": True}
    assert figures.doors is not None
    assert figures.doors.streams == {"grpc": 1, "http": 4}
    assert figures.doors.http_requests_per_second == 10
    assert figures.doors.http_failures_per_second == 1.5


def test_storage_and_agents() -> None:
    figures = at_work()
    told = figures.storage
    assert told.disk_bytes == {"blocks": 900_000_000, "ledger": 5_000_000, "windows": 60_000_000}
    assert (told.disk_limit_bytes, told.disk_free_bytes, told.disk_free_floor_bytes) == (10**9, 80 * 10**9, 5 * 10**9)
    assert (told.load_bytes_per_second, told.store_bytes_per_second) == (12e6, 0)
    assert told.evictions == {"hot": {"capacity": 2}, "warm": {"ttl": 1}}
    assert told.evictions_since_start == {"hot": {"capacity": 4}, "warm": {"capacity": 5, "ttl": 1}}
    assert told.quarantined == {"truncated": 2}
    assert told.quarantined_since_start == {"digest": 1, "truncated": 2}
    assert list(figures.agents_by_tier.items()) == [("hot", 12), ("warm", 40), ("remote", 7), ("none", 3)]
    assert [(one.agent_id, one.tier) for one in figures.recent_agents] == [("bob", "hot"), ("ada", "warm")]
    assert figures.recent_agents[0].last_turn == "2026-01-02T11:59:55.000+00:00"
    assert (figures.agents_known, figures.agents_all_listed) == (2, True)


def test_the_first_reading_has_gauges_and_no_rates() -> None:
    history = History()
    history.tell(Processes().read(0.0))
    figures = validated(conclude(history, ADDRESSES))
    assert figures.interval_seconds == 0
    assert figures.models[0].running == 3
    assert figures.models[0].hit_rate == HitRate(interval=None, since_start=0.5)
    assert figures.models[0].decode_tokens_per_second is None
    assert figures.processes[0].rpcs_per_second is None
    assert figures.storage.evictions == {}
    assert figures.storage.evictions_since_start == {"hot": {"capacity": 2}, "warm": {"capacity": 5}}


def test_a_worker_that_is_down_leaves_what_the_others_know() -> None:
    figures = validated(at_work(pages={"worker": DOWN}))
    worker = figures.processes[1]
    assert (worker.state, worker.why, worker.rpcs_per_second) == ("down", DOWN.why, None)
    assert [(one.model_id, one.state, one.running) for one in figures.models] == [
        ("demo", "loaded", None),
        ("llama-3.1-8b", "registered", None),
    ]
    assert figures.models[0].time_to_first_token == {}
    assert figures.agents_by_tier == {"warm": 40, "remote": 7, "none": 3}
    assert figures.storage.load_bytes_per_second is None
    assert figures.storage.evictions == {"warm": {"ttl": 1}}
    assert not figures.silent


def test_a_gateway_that_is_down_leaves_the_models_that_the_worker_names() -> None:
    gone = Silence("no gateway answers")
    figures = validated(at_work(pages={"gateway": DOWN}, models=gone, agents=gone))
    assert figures.doors is None
    assert figures.models_error == figures.agents_error == gone.why
    assert [(one.model_id, one.state, one.running) for one in figures.models] == [
        ("demo", "loaded", 3),
        ("llama-3.1-8b", None, 0),
    ]
    assert figures.recent_agents == []
    assert figures.agents_known is None
    assert not figures.silent
    assert at_work(pages={"gateway": DOWN, "worker": DOWN, "store": DOWN}, models=gone).silent


def test_who_is_not_ready_says_which_process_it_misses() -> None:
    processes, history = Processes(), History()
    processes.worker.set("agentmem_ready", 0)
    processes.gateway.set("agentmem_peer_up", 0, peer="worker")
    history.tell(processes.read(0.0))
    gateway, worker, store = conclude(history, ADDRESSES).processes
    assert (gateway.state, gateway.why) == ("up", "does not reach the worker")
    assert (worker.state, worker.why) == ("not_ready", "it says that it is not serving; its log says why")
    assert (store.state, store.why) == ("up", None)
    processes.worker.set("agentmem_peer_up", 0, peer="store")
    history.tell(processes.read(2.0))
    assert conclude(history, ADDRESSES).processes[1].why == "does not reach the store"


def test_agents_are_absent_where_nobody_wants_them() -> None:
    figures = validated(at_work(agents=None))
    assert (figures.recent_agents, figures.agents_known, figures.agents_error) == ([], None, None)


def test_an_agent_without_a_turn() -> None:
    new = agent("new", 0)
    new.update_time.Clear()
    figures = at_work(agents=latest([new, agent("old", 99999)], 1, all_listed=False))
    assert [one.agent_id for one in figures.recent_agents] == ["old"]
    assert (figures.agents_known, figures.agents_all_listed) == (2, False)
    assert at_work(agents=latest([new], 1, all_listed=True)).recent_agents[0].last_turn is None
