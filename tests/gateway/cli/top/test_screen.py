from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from agentmem.v1 import types_pb2
from gateway.cli.top.measure import Figures
from gateway.cli.top.screen import NOTHING_ANSWERS, Screen, written

from .example import NODES, agent, at_work, many_agents
from .pages import DOWN

GATEWAY = "127.0.0.1:50051"
AT_WORK = at_work(agents=many_agents(40))
NO_WORKER = at_work(pages={"worker": DOWN}, agents="the worker does not answer")
NOTHING = at_work(pages={"gateway": DOWN, "worker": DOWN, "store": DOWN}, models="no gateway", agents="no gateway")
ANY = st.sampled_from([AT_WORK, NO_WORKER, NOTHING, at_work(agents=None)])


def texts(figures: Figures, width: int) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width, highlight=False, markup=False).print(Screen(figures, GATEWAY))
    return [line.rstrip() for line in file.getvalue().splitlines()]


@given(ANY, st.integers(20, 250))
def test_it_fits_every_width(figures: Figures, width: int) -> None:
    assert all(len(line) <= width for line in texts(figures, width))


def test_a_usual_terminal() -> None:
    shown = texts(AT_WORK, 80)
    head = shown.pop(0)
    assert [line for line in shown if line][:24] == [
        "process  state  req/s  failed/s   memory   CPU  uptime  restarts  version",
        "gateway  up        30       3.5  84.2 MB  25 %     2 h         0    0.1.0",
        "worker   up         0         0  84.2 MB   0 %     2 h         0    0.1.0",
        "store    up         0         0  84.2 MB   0 %     2 h         0    0.1.0",
        "model         state       running  waiting  decode/s  prefill/s  hits  pool",
        "demo          loaded            3        1       250        200  90 %  23 %",
        "llama-3.1-8b  registered        0        0         0          0     –     –",
        "model  time to               p50     p95     p99  measured",
        "demo   first token, hot    18 ms   24 ms   25 ms        20",
        "demo   first token, none   1.8 s   2.4 s   2.5 s         1",
        "demo   between tokens     3.8 ms  4.9 ms  5.0 ms       499",
        "agents: hot 12 · warm 40 · remote 7 · none 3",
        "disk: blocks 900.0 MB · ledger 5.0 MB · windows 60.0 MB · KV's limit 1.0 GB",
        "disk free: 80.0 GB, floor 5.0 GB",
        "KV: loads 12.0 MB/s · stores 0 B/s",
        "evicted: 3 (hot capacity 2, warm ttl 1)",
        "quarantined since start: 3 (digest 1, truncated 2)",
        "agent      model  tier  tokens  turns  last turn",
        *(f"agent-{n:03}  demo   warm   1,234      3    {n + 2} s ago" for n in range(6)),
    ]
    assert head.startswith(f"agentmem top · {GATEWAY} · ")
    assert head.endswith(" · last 2.0 s")


def test_the_documentation_shows_it() -> None:
    root = Path(__file__).parents[4]
    nodes = [line for line in texts(at_work(nodes=NODES), 80) if "a.local" in line or line.startswith("node ")]
    assert all(line in (root / "docs" / "operations" / "top.md").read_text(encoding="utf-8") for line in nodes)
    pages = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    shown = texts(AT_WORK, 80)
    samples = [
        sample.splitlines()
        for page in pages
        for sample in re.findall(r"```\w*\n(agentmem top · .*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    ]
    assert samples
    for sample in samples:
        assert sample[1:] == shown[1 : len(sample)]


def test_a_cluster_has_a_line_for_each_node() -> None:
    """And where the gateway lists none, the reason; a single machine has neither."""
    shown = texts(at_work(nodes=NODES), 80)
    first = next(number for number, line in enumerate(shown) if line.startswith("node "))
    assert shown[first : first + 4] == [
        "node  state     turns      heard  models  address        version",
        "a     ready         3    0 s ago  demo    a.local:50061    0.1.0",
        "b     draining      1    1 s ago  demo    b.local:50061    0.1.0",
        "c     gone          0  5 min ago  –       c.local:50061    0.1.0",
    ]
    assert "cluster: this needs a key" in texts(at_work(nodes="this needs a key"), 80)
    assert not [line for line in texts(AT_WORK, 80) if line.startswith(("node ", "cluster:"))]


def test_narrow_screens_show_the_beginnings_of_lines() -> None:
    wide, narrow = texts(AT_WORK, 120), texts(AT_WORK, 45)
    assert narrow == [line[:45].rstrip() for line in wide]


def test_what_is_down_is_said_with_the_reason() -> None:
    shown = texts(NO_WORKER, 80)
    assert "worker: nothing listens there" in shown
    assert any(line.split()[:2] == ["worker", "down"] for line in shown)
    assert "agents: the worker does not answer" in shown
    assert NOTHING_ANSWERS[:80].rstrip() in texts(NOTHING, 80)
    assert sum("no gateway" in line for line in texts(NOTHING, 80)) == 1


def test_without_a_screen_everything_is_shown() -> None:
    shown = texts(AT_WORK, 200)
    assert sum(line.startswith("agent-") for line in shown) == 40
    assert not any("…" in line for line in shown)


def test_hostile_names_are_shown_and_not_obeyed() -> None:
    hostile = agent("[bold]x\x1b[2J\n\t", 1, types_pb2.TIER_HOT)
    figures = at_work(agents=[hostile], pages={"store": "x\x1b[2J\nand more"})
    text = "\n".join(texts(figures, 120))
    assert "[bold]x\\x1b[2J\\n\\t" in text
    assert "store: x\\x1b[2J\\nand more" in text
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("running", 1234, "1,234"),
        ("running", None, "–"),
        ("requests_per_second", 0.0, "0"),
        ("requests_per_second", 0.0003, "<0.01"),
        ("requests_per_second", 0.04, "0.04"),
        ("requests_per_second", 3.21, "3.2"),
        ("requests_per_second", 9.96, "10"),
        ("requests_per_second", 12400.4, "12,400"),
        ("hit_rate", 0.925, "92 %"),
        ("hit_rate", 1.0, "100 %"),
        ("p50_seconds", 0.00081, "0.8 ms"),
        ("p50_seconds", 0.025, "25 ms"),
        ("p50_seconds", 1.23, "1.2 s"),
        ("p50_seconds", 300.0, "300 s"),
        ("uptime_seconds", 7200.5, "2 h"),
        ("disk_free_bytes", 9_437_184, "9.4 MB"),
        ("load_bytes_per_second", 9_437_184.0, "9.4 MB/s"),
        ("state", "not_ready", "not ready"),
    ],
)
def test_amounts(name: str, value: object, expected: str) -> None:
    assert written(name, value) == expected
