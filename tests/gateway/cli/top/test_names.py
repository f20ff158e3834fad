import re
from pathlib import Path

from gateway.cli.top.names import BY_SERVICE, HISTOGRAMS

TABLE = (Path(__file__).parents[4] / "deploy" / "METRICS.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(?P<name>\w+)` \| (?P<type>\w+) \| [^|]* \| (?P<processes>[^|]*) \|", re.MULTILINE)


def test_every_metric_that_is_read_is_exported_by_that_process() -> None:
    rows = {(row["name"], service) for row in ROW.finditer(TABLE) for service in row["processes"].split(", ")}
    assert {(name, service) for service, names in BY_SERVICE.items() for name in names} <= rows


def test_histograms_are_read_as_such() -> None:
    types = {row["name"]: row["type"] for row in ROW.finditer(TABLE)}
    read = {name for names in BY_SERVICE.values() for name in names}
    assert {name for name in read if types[name] == "histogram"} == set(HISTOGRAMS)
