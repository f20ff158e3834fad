"""Series that a real Prometheus has recorded, as a promtool test that asks which alerts they would raise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.prometheus import CONFIG, Programs, Prometheus

MISSED = frozenset({"AgentmemProcessDown", "AgentmemStoreUnreachable", "AgentmemWorkerUnreachable"})
"""Alerts that also fire when a busy machine makes two scrapes, or answers of a peer, in a row late."""
SELECTOR = '{__name__=~"up|agentmem_.*|process_start_time_seconds|grpc_server_handled_total",job="agentmem"}'
"""The series that alerts read."""
FIRING = 'max_over_time(ALERTS{{alertname=~"{name}",alertname!~"{but}",alertstate="firing"}}[{seconds}s])'


@dataclass(frozen=True)
class Expected:
    """An alert that fires, or not, between two moments, in seconds since the epoch.

    `alert` is a regular expression, and so is `but`: those of which nothing is said.
    """

    alert: str
    begin: float
    end: float
    fires: bool = True
    but: str = ""

    def test(self, since: float) -> dict[str, object]:
        """As promtool has it. An expected alert may come with the scrape after the end."""
        end = math.ceil(self.end - since) + 1 if self.fires else math.floor(self.end - since)
        seconds = math.ceil(end + since - self.begin) if self.fires else math.ceil(self.end - self.begin)
        firing = FIRING.format(name=self.alert, but=self.but, seconds=seconds)
        return {
            "expr": f"count({firing}) > bool 0" if self.fires else f"absent({firing})",
            "eval_time": f"{end}s",
            "exp_samples": [{"labels": "{}", "value": 1}],
        }


def check(programs: Programs, prometheus: Prometheus, folder: Path, expected: Sequence[Expected]) -> None:
    begin, end = math.floor(min(one.begin for one in expected)), math.ceil(max(one.end for one in expected)) + 2
    series = prometheus.query_range(SELECTOR, begin, end, 1)
    assert series, "nothing was recorded"
    rules = sorted((CONFIG.parent / "rules").glob("*.yml"))
    test = {
        "interval": "1s",
        "input_series": [{"series": _name(labels), "values": _values(points, begin, end)} for labels, points in series],
        "promql_expr_test": [one.test(begin) for one in expected],
    }
    file = folder / "recorded.yml"
    file.write_text(
        yaml.safe_dump({"rule_files": [str(rule) for rule in rules], "evaluation_interval": "1s", "tests": [test]})
    )
    programs.check("test", "rules", file)


def _name(labels: dict[str, str]) -> str:
    pairs = ",".join(f'{name}="{value}"' for name, value in labels.items() if name != "__name__")
    return f"{labels['__name__']}{{{pairs}}}"


def _values(points: Sequence[tuple[float, float]], begin: int, end: int) -> str:
    """A value for each second. Where a series ends it says so, as Prometheus does, else it would last five minutes."""
    by_second = {round(at): value for at, value in points}
    said, there = [], False
    for second in range(begin, end + 1):
        value = by_second.get(second)
        missing = "stale" if there else "_"
        said.append(missing if value is None else repr(value))
        there = value is not None
    return " ".join(said)
