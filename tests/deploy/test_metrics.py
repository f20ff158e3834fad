import sys

import pytest

from deploy.docs.metrics import Row
from deploy.docs.metrics import rows as exported
from gateway.http import overview


@pytest.fixture(scope="module")
def rows() -> tuple[Row, ...]:
    return exported()


def test_the_overview_asks_the_worker_for_series_that_it_has(rows: tuple[Row, ...]) -> None:
    """A page without a series that is asked for is no error: the overview would say that there is none."""
    there = {name for row in rows if "worker" in row.processes for name in series(row)}
    if sys.platform != "linux":
        there |= {name for name in overview.OF_WORKER if name.startswith("process_")}
    assert set(overview.OF_WORKER) <= there
    assert not {"agentmem_time_to_first_token_seconds", "agentmem_cache_disk_bytes"} & there, "a family; the store's"


def series(row: Row) -> list[str]:
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
