"""The table of metrics: what design, rules and the overview rest on is in it."""

import sys

import pytest

from deploy.docs.metrics import Row
from deploy.docs.metrics import rows as exported
from gateway.http import overview

DESIGNED = """
num_requests_running num_requests_waiting kv_cache_usage_ratio prefix_cache_queries_total prefix_cache_hits_total
cache_lookups_total prompt_tokens_total prompt_tokens_cached_total generation_tokens_total time_to_first_token_seconds
inter_token_latency_seconds e2e_request_latency_seconds request_queue_time_seconds request_prefill_time_seconds
batch_size requests_finished_total cache_load_seconds cache_load_bytes_total cache_store_seconds cache_store_bytes_total
cache_evictions_total cache_quarantined_total cache_disk_bytes cache_disk_limit_bytes cache_agents pool_blocks
mlx_memory_bytes model_info
"""


@pytest.fixture(scope="module")
def rows() -> tuple[Row, ...]:
    return exported()


def test_all_that_is_designed_is_there(rows: tuple[Row, ...]) -> None:
    names = {row.name for row in rows}
    assert {f"agentmem_{name}" for name in DESIGNED.split()} | {"grpc_server_handled_total"} <= names


def test_the_overview_asks_the_worker_for_series_that_it_has(rows: tuple[Row, ...]) -> None:
    """A page without a series that is asked for is no error: the overview would say that there is none."""
    there = {name for row in rows if "worker" in row.processes for name in series(row)}
    if sys.platform != "linux":
        there |= {name for name in overview.OF_WORKER if name.startswith("process_")}
    assert set(overview.OF_WORKER) <= there
    assert not {"agentmem_time_to_first_token_seconds", "agentmem_cache_disk_bytes"} & there, "a family; the store's"


def series(row: Row) -> list[str]:
    """The names of a metric's series, as `name[]` of a page's address has them."""
    return [f"{row.name}_{part}" for part in ("bucket", "count", "sum")] if row.type == "histogram" else [row.name]


def test_names_say_what_they_are(rows: tuple[Row, ...]) -> None:
    for row in rows:
        assert row.name.startswith(("agentmem_", "grpc_server_", "process_")), row
        assert row.meaning.endswith("."), row
        assert (row.type == "counter") == row.name.endswith("_total"), row
        assert row.type in ("counter", "gauge", "histogram"), row
        if row.type == "histogram":
            assert row.name.endswith("_seconds"), row


def test_labels_are_bounded(rows: tuple[Row, ...]) -> None:
    """No agent, no request, no caller; namespaces by option."""
    labels = {label for row in rows for label in row.labels}
    assert labels == {
        *("grpc_type", "grpc_service", "grpc_method", "grpc_code", "service", "version", "peer"),
        *("model_id", "namespace", "match", "tier", "reason", "state", "kind", "result"),
        *("route", "method", "code", "door", "how", "operation", "policy", "kv_bits", "source", "choice"),
    }
