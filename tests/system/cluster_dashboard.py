"""A Prometheus beside the nodes of a cluster, and what the cluster's dashboard and its alerts then have to show."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import prometheus
from tests.dashboards import Dashboard
from tests.deploy.metrics import of_a_cluster
from tests.prometheus import Prometheus, values
from tests.promql import arms, filled_in, metric_names, with_bool
from tests.system.stack import Stack

SERVICES = ("store", "worker", "gateway")
INTERVAL = 1.0
"""Seconds between scrapes."""

NEED_A_FAULT = {
    "Gone": "a node that dies without saying that it leaves",
    "Sent again": "a node that cannot be reached, or two that compute turns of one agent",
    "Ledger failures": "a database that is away, or a row that is damaged",
}
"""Panels that are at 0 while all is well, and what moves them."""
AT_ANY_MOMENT = frozenset({"Running by node"})
"""Panels of what is there for a moment: at 0, unless a scrape comes in it."""


async def scraped(asked: Prometheus, processes: int) -> None:
    """Wait until each of so many processes was scraped again, while it was up."""
    query = f"min(timestamp(up)) >= {time.time():.3f} and count(up == 1) == {processes}"
    async with asyncio.timeout(60):
        while not asked.query(query):
            await asyncio.sleep(0.1)


def needs_a_cluster(expression: str) -> bool:
    """Return whether a single machine has no series of it."""
    return bool(metric_names(expression) & of_a_cluster())


def alerts_compare(asked: Prometheus, at: float, *, of_clusters: bool) -> int:
    """Assert that alerts have something to compare, and return the number of comparisons.

    With `bool` a comparison answers where both sides have data, whatever it says; see tests/promql.py.
    """
    rules = [rule for group in asked.get("rules")["groups"] for rule in group["rules"] if rule["type"] == "alerting"]
    assert len(rules) >= 15 and {rule["health"] for rule in rules} == {"ok"}
    compared = [arm for rule in rules for arm in arms(rule["query"]) if needs_a_cluster(arm) == of_clusters]
    assert [arm for arm in compared if not values(asked.query(with_bool(arm), at))] == []
    return len(compared)


@dataclass
class Recorded:
    """A Prometheus's record of the nodes `names` since `begin`, or why there is none."""

    names: Sequence[str]
    asked: Prometheus | None = None
    missing: str = ""
    begin: float = 0.0

    async def show(self) -> None:
        """Assert that each panel of the cluster's dashboard has data, and each alert something to compare."""
        if self.asked is None:
            pytest.skip(self.missing)
        for _ in range(2):
            await scraped(self.asked, len(SERVICES) * len(self.names))
        end = time.time()
        board = Dashboard("cluster")
        query = re.fullmatch(r"label_values\((.+), (\w+)\)", board.queries["instance"])
        assert query is not None and board.queries.keys() == {"instance"}
        nodes = self.asked.label_values(query[2], query[1])
        assert nodes == sorted(self.names), "each node is an instance"
        seen = dict[tuple[str, str], list[float]]()
        for panel in board.panels:
            for target in panel["targets"]:
                expression = filled_in(target["expr"], {"instance": nodes}, {"__rate_interval": f"{4 * INTERVAL:g}s"})
                drawn = (
                    self.asked.query(expression, end)
                    if target.get("instant")
                    else self.asked.query_range(expression, self.begin, end, INTERVAL)
                )
                seen[panel["title"], target["expr"]] = values(drawn)
        assert not [each for each, points in seen.items() if not points], "expressions without data"
        still = {title for (title, _), points in seen.items() if not any(points)}
        titles = {panel["title"] for panel in board.panels}
        assert NEED_A_FAULT.keys() | AT_ANY_MOMENT <= titles
        assert still <= NEED_A_FAULT.keys() | AT_ANY_MOMENT, "panels that should have moved"
        counted = [points for (title, _), points in seen.items() if title == "Ready"]
        assert counted == [[len(nodes)]] * 2, "ready ones, and those that are known"
        assert alerts_compare(self.asked, end, of_clusters=True) >= 3


@asynccontextmanager
async def recording(stacks: dict[str, Stack], folder: Path) -> AsyncIterator[Recorded]:
    """Scrape nodes by their names during the block, each process once before it begins."""
    try:
        await asyncio.to_thread(prometheus.programs)
    except prometheus.Unavailable as problem:
        yield Recorded(list(stacks), missing=str(problem))
        return
    addresses = {
        name: {service: f"127.0.0.1:{stack.ports[service]}" for service in SERVICES} for name, stack in stacks.items()
    }
    folder.mkdir()
    config = prometheus.shipped_config(folder, addresses, f"{INTERVAL:g}s")
    with prometheus.running(config, folder) as asked:
        recorded = Recorded(list(stacks), asked)
        await scraped(asked, len(SERVICES) * len(stacks))
        recorded.begin = time.time()
        yield recorded
