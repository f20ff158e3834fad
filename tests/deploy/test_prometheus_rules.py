from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import prometheus
from tests.deploy.metrics import documented
from tests.promql import family, metric_names

FOLDER = prometheus.CONFIG.parent
RULES = sorted(FOLDER.glob("rules/*.yml"))
TESTS = sorted(FOLDER.glob("tests/*.yml"))
ALERTS = {
    *("AgentmemProcessDown", "AgentmemNotReady", "AgentmemStoreUnreachable", "AgentmemWorkerUnreachable"),
    *("AgentmemRestarts", "AgentmemEngineStalled", "AgentmemQueueFull", "AgentmemSlowFirstToken", "AgentmemErrors"),
    *("AgentmemHitRateFalls", "AgentmemKvNotWritten", "AgentmemQuarantineGrows"),
    *("AgentmemDiskNearLimit", "AgentmemDiskNearFloor", "AgentmemLedgerWritesFail", "AgentmemQuotaFull"),
    *("AgentmemNodeGone", "AgentmemNodeCutOff", "AgentmemNodesNotReady", "AgentmemLedgerUnreachable"),
    "AgentmemPeerFetchesFail",
}
"""Their names are what silences, routes and the runbook hold on to."""
PROMETHEUS_OWN = {"up"}


def rules(kind: str) -> list[dict[str, Any]]:
    groups = [group for file in RULES for group in yaml.safe_load(file.read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"] if kind in rule]


def test_promtool_takes_the_configuration_and_the_rules(promtool: prometheus.Programs) -> None:
    assert "SUCCESS" in promtool.check("check", "config", prometheus.CONFIG)
    promtool.check("check", "rules", "--lint=all", "--lint-fatal", *RULES)


@pytest.mark.slow
@pytest.mark.parametrize("file", TESTS, ids=lambda file: file.stem)
def test_the_rules_do_what_their_tests_say(promtool: prometheus.Programs, file: Path) -> None:
    assert "SUCCESS" in promtool.check("test", "rules", file)


def test_the_alerts_are_those_that_others_know() -> None:
    assert {rule["alert"] for rule in rules("alert")} == ALERTS


def test_each_alert_says_how_bad_it_is_what_it_means_and_where_to_read_on() -> None:
    for rule in rules("alert"):
        name = rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning"), name
        notes = rule["annotations"]
        assert set(notes) == {"summary", "description", "runbook"}, name
        assert notes["runbook"] == f"deploy/RUNBOOK.md#{name.lower()}"
        assert 20 < len(notes["summary"]) < 100 < len(notes["description"]) < 400, name


def test_each_rule_has_a_test_that_names_it() -> None:
    text = "\n".join(file.read_text() for file in TESTS)
    named = set(re.findall(r"[\w:]+", text))
    for rule in (*rules("record"), *rules("alert")):
        name = rule.get("record") or rule["alert"]
        assert name in named, f"no test of {name} in deploy/prometheus/tests"


def test_rules_use_what_is_documented_or_recorded() -> None:
    known = {family(metric) for metric in documented()} | {rule["record"] for rule in rules("record")} | PROMETHEUS_OWN
    for rule in (*rules("record"), *rules("alert")):
        used = metric_names(rule["expr"])
        assert used, rule
        unknown = {name for name in used if name not in known and family(name) not in known}
        assert not unknown, f"{rule.get('record') or rule['alert']} uses {unknown}, which nobody exports"
