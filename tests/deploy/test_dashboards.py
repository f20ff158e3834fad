from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests import prometheus
from tests.dashboards import FOLDER, NAMES, Dashboard
from tests.deploy.metrics import documented
from tests.deploy.test_prometheus_rules import ALERTS, PROMETHEUS_OWN, rules
from tests.promql import family, filled_in, metric_names

PROVISIONING = FOLDER.parent / "provisioning"
VARIABLES = {"instance": ["local", "studio"], "model": ["org/model-4bit"]}
INTERVALS = {"__rate_interval": "20s", "__range": "3600s"}


@pytest.fixture(params=NAMES)
def board(request: pytest.FixtureRequest) -> Dashboard:
    return Dashboard(request.param)


def test_names_and_numbers_are_unique(board: Dashboard) -> None:
    assert board.json["uid"] == f"agentmem-{board.name}"
    assert len({Dashboard(name).json["uid"] for name in NAMES}) == len(NAMES)
    ids = [panel["id"] for panel in board.json["panels"]]
    titles = [panel["title"] for panel in board.json["panels"]]
    assert len(set(ids)) == len(ids) and len(set(titles)) == len(titles)


def test_each_panel_says_what_it_shows_in_which_unit(board: Dashboard) -> None:
    assert len(board.panels) >= 8 and board.rows
    for panel in board.panels:
        assert len(panel["description"]) > 60, panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        refs = [target["refId"] for target in panel["targets"]]
        assert refs and len(set(refs)) == len(refs), panel["title"]
        assert all(target["legendFormat"] for target in panel["targets"]), panel["title"]


def test_numbers_are_those_of_now_and_curves_of_a_range(board: Dashboard) -> None:
    """The last value of a range would be that of a process that is gone, in green."""
    assert any(panel["type"] == "stat" for panel in board.panels)
    for panel in board.panels:
        for target in panel["targets"]:
            assert (target["instant"], target["range"]) == (panel["type"] == "stat", panel["type"] != "stat")


def test_they_ask_for_what_is_documented_or_recorded(board: Dashboard) -> None:
    known = {family(metric) for metric in documented()} | {rule["record"] for rule in rules("record")}
    for title, expression in [*board.expressions, *((name, query) for name, query in board.queries.items())]:
        used = metric_names(
            expression.removeprefix("label_values(").replace(", instance)", "").replace(", model_id)", "")
        )
        assert used, title
        unknown = {n for n in used if n not in known and family(n) not in known} - PROMETHEUS_OWN - {"ALERTS"}
        assert not unknown, f"{title}: {unknown} is exported by nobody"


def test_alerts_that_descriptions_name_exist(board: Dashboard) -> None:
    for panel in board.panels:
        words = panel["description"].replace("(", " ").replace(")", " ").replace(".", " ").replace(",", " ").split()
        assert {word.rstrip(":;") for word in words if word.startswith("Agentmem") and len(word) > 9} <= ALERTS


def test_promtool_takes_every_expression(promtool: prometheus.Programs, tmp_path: Path, board: Dashboard) -> None:
    rules = [
        {"record": f"panel:number_{number}", "expr": filled_in(expression, VARIABLES, INTERVALS)}
        for number, (_, expression) in enumerate(board.expressions)
    ]
    file = tmp_path / "panels.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": board.name, "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool.check("check", "rules", file)


def test_provisioning_names_what_there_is() -> None:
    (source,) = yaml.safe_load((PROVISIONING / "datasources" / "prometheus.yml").read_text())["datasources"]
    scraped = yaml.safe_load(prometheus.CONFIG.read_text())["global"]["scrape_interval"]
    assert (source["type"], source["jsonData"]["timeInterval"]) == ("prometheus", scraped)
    (provider,) = yaml.safe_load((PROVISIONING / "dashboards" / "agentmem.yml").read_text())["providers"]
    assert provider["type"] == "file" and provider["options"]["path"] == "${AGENTMEM_DASHBOARDS}"
    assert {path.stem for path in FOLDER.glob("*.json")} == set(NAMES)
