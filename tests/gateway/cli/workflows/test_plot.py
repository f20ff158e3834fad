from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest
from matplotlib.patches import Rectangle

from agentmem.v1 import workflow_pb2
from gateway.cli.workflows.plot import figure, layout, svg
from gateway.cli.workflows.state import Run
from tests.gateway.cli.workflows.events import ABSENT, NEW, RUN, numbered, speaking, spoke, step, usage, workflow
from tests.gateway.cli.workflows.test_report import told


def test_a_row_for_each_agent_and_its_steps_by_phase() -> None:
    groups, bars = layout(told(RUN))
    assert groups == [("yard", 2), ("verdict", 1)]
    assert {name: [(bar.column, bar.tokens) for bar in row] for name, row in bars.items()} == {
        "warden": [(2, {"hot": 0, "warm": 0, "remote": 0, "new": 50})],
        "marco": [
            (0, {"hot": 0, "warm": 0, "remote": 0, "new": 10}),
            (1, {"hot": 10, "warm": 0, "remote": 0, "new": 20}),
            (2, {"hot": 0, "warm": 16, "remote": 0, "new": 44}),
        ],
        "danny": [
            (0, {"hot": 0, "warm": 0, "remote": 0, "new": 20}),
            (1, {"hot": 25, "warm": 0, "remote": 0, "new": 15}),
        ],
    }


def test_bars_are_stacked() -> None:
    drawn = figure(told(RUN))
    marco = drawn.axes[1]
    last = [p for p in marco.patches if isinstance(p, Rectangle) and p.get_width() == 0.8 and p.get_x() > 1.5]
    assert sorted((bar.get_y(), bar.get_height()) for bar in last if bar.get_height()) == [(0, 16), (16, 44)]
    assert marco.get_ylabel() == "marco"


@pytest.mark.parametrize("events", [RUN, RUN[:1], []], ids=["whole", "begun", "nothing"])
def test_it_is_svg(events: list[workflow_pb2.RunWorkflowResponse]) -> None:
    drawn = svg(told(events))
    assert ET.fromstring(drawn).tag == "{http://www.w3.org/2000/svg}svg"


def test_the_same_run_gives_the_same_file() -> None:
    assert svg(told(RUN[:4])) == svg(told(RUN[:4]))


def test_names_are_no_formulas() -> None:
    run = Run()
    events = numbered(
        {"started": workflow_pb2.WorkflowStarted(workflow=workflow())},
        speaking("$x^$<script>", "$p_$"),
        spoke("$x^$<script>", "x", "$p_$", step(NEW, usage(10), ABSENT)),
    )
    for event in events:
        run.add(event)
    drawn = svg(run)
    assert "<script" not in drawn
    ET.fromstring(drawn)
