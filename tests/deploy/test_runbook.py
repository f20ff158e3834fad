from __future__ import annotations

import re
from pathlib import Path

import pytest

from cache_service.settings import StoreSettings
from gateway.cli.up.settings import UpSettings
from gateway.settings import GatewaySettings
from inference_service.settings import WorkerSettings
from tests.deploy.metrics import documented
from tests.deploy.test_prometheus_rules import ALERTS
from tests.promql import family

ROOT = Path(__file__).parents[2]
RUNBOOK = (ROOT / "deploy" / "RUNBOOK.md").read_text()
SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", RUNBOOK, re.MULTILINE | re.DOTALL))
COMMANDS_OWN = {"--repair"}


def test_each_alert_has_a_section_and_each_section_an_alert() -> None:
    assert set(SECTIONS) == ALERTS


@pytest.mark.parametrize("name", sorted(ALERTS))
def test_a_section_says_what_it_means_what_users_see_and_what_to_do(name: str) -> None:
    text = SECTIONS[name]
    assert "**Means** " in text and "**Users see** " in text
    assert "\n- Look: " in text and ("\n- Do: " in text or "| what to do |" in text)
    assert set(re.findall(r"Agentmem[A-Z]\w+", text)) <= ALERTS


def test_lines_of_logs_are_in_the_code() -> None:
    code = "\n".join(
        path.read_text()
        for package in ("cache_service", "inference_service", "gateway", "protos/agentmem")
        for path in (ROOT / package).rglob("*.py")
    )
    quoted = re.findall(r"\blogs?: `([^`]+)`(?: or `([^`]+)`)?(?:[^`]*?; `([^`]+)`)?", " ".join(RUNBOOK.split()))
    lines = {line for group in quoted for line in group if line}
    assert len(lines) > 10, lines
    for line in lines:
        assert line in code, f"nobody logs {line!r}"


def test_flags_exist() -> None:
    flags = {
        f"--{field.replace('_', '-')}"
        for settings in (StoreSettings, WorkerSettings, GatewaySettings, UpSettings)
        for field in settings.model_fields
    }
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", RUNBOOK))
    assert len(named) > 10
    assert named - COMMANDS_OWN <= flags


def test_metrics_are_documented() -> None:
    known = {family(metric) for metric in documented()}
    named = set(re.findall(r"\b((?:agentmem|process|grpc)_[a-z_]+)\b", RUNBOOK)) - {"agentmem_build_info"}
    assert len(named) > 15
    assert {name for name in named if family(name) not in known} == set()
