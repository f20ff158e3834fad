"""The checked-in dashboards, read as Grafana does."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "deploy" / "grafana" / "dashboards"
NAMES = ("overview", "cache", "agents", "services", "cluster")


@dataclass(frozen=True)
class Dashboard:
    name: str

    @property
    def json(self) -> dict[str, Any]:
        text: dict[str, Any] = json.loads((FOLDER / f"{self.name}.json").read_text())
        return text

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [panel for panel in self.json["panels"] if panel["type"] == "row"]

    @property
    def panels(self) -> list[dict[str, Any]]:
        return [panel for panel in self.json["panels"] if panel["type"] != "row"]

    @property
    def expressions(self) -> list[tuple[str, str]]:
        return [(panel["title"], target["expr"]) for panel in self.panels for target in panel["targets"]]

    @property
    def queries(self) -> dict[str, str]:
        variables = self.json["templating"]["list"]
        return {variable["name"]: variable["query"] for variable in variables if variable["type"] == "query"}
