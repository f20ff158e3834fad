from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from agentmem.v1 import types_pb2
from gateway.cli.top import sections
from gateway.cli.top.figures import Figures
from gateway.cli.top.reading import Silence, latest
from gateway.cli.top.screen import NOTHING_ANSWERS, fitted, plain

from .example import agent, at_work, many_agents
from .pages import DOWN

GATEWAY = "127.0.0.1:50051"
AT_WORK = at_work(agents=many_agents(40))
NO_WORKER = at_work(pages={"worker": DOWN}, agents=Silence("the worker does not answer"))
NOTHING = at_work(
    pages={"gateway": DOWN, "worker": DOWN, "store": DOWN}, models=Silence("no gateway"), agents=Silence("no gateway")
)
ANY = st.sampled_from([AT_WORK, NO_WORKER, NOTHING, at_work(agents=None)])


def texts(figures: Figures, width: int, height: int) -> list[str]:
    return [line.plain for line in fitted(figures, GATEWAY, width, height)]


@given(ANY, st.integers(1, 250), st.integers(0, 80))
def test_it_fits_every_screen(figures: Figures, width: int, height: int) -> None:
    lines = fitted(figures, GATEWAY, width, height)
    assert len(lines) <= height
    assert all(line.cell_len <= width for line in lines)
    console = Console(file=io.StringIO(), width=width, height=max(height, 1), highlight=False, markup=False)
    assert len(console.render_lines(lines[0], pad=False)) == 1 if lines else True


@given(ANY, st.integers(1, 250), st.integers(1, 80))
def test_a_higher_screen_shows_no_section_less(figures: Figures, width: int, height: int) -> None:
    def shown(height: int) -> int:
        lines = [line for line in texts(figures, width, height) if line]
        return sum(
            any(line.plain in lines for line in section(figures, width)[:1])
            for section in (sections.models, sections.latencies, sections.storage, sections.agents)
        )

    assert shown(height) <= shown(height + 1)


def test_a_usual_terminal() -> None:
    assert texts(AT_WORK, 80, 24) == [
        texts(AT_WORK, 80, 24)[0],
        "process  state  RPC/s  failed/s   memory   CPU  uptime  restarts  version",
        "gateway  up        20       2.0  84.2 MB  25 %     2 h         0    0.1.0",
        "worker   up         0         0  84.2 MB   0 %     2 h         0    0.1.0",
        "store    up         0         0  84.2 MB   0 %     2 h         0    0.1.0",
        "model         running  waiting  batch  decode/s  prefill/s  hits now   pool used",
        "demo                3        1      3       250        200      90 %  120 of 512",
        "llama-3.1-8b        0        0      0         0          0         –           –",
        "model  time to               p50     p95     p99  measured",
        "demo   first token, hot    18 ms   24 ms   25 ms        20",
        "demo   first token, none   1.8 s   2.4 s   2.5 s         1",
        "demo   between tokens     3.8 ms  4.9 ms  5.0 ms       499",
        "agents: hot 12 · warm 40 · remote 7 · none 3 · 40 agents to list",
        "disk: 960.0 MB of 1.0 GB · free 80.0 GB, floor 5.0 GB · ledgers 5.0 MB",
        "KV: loads 12.0 MB/s · stores 0 B/s",
        "quarantined 2 (truncated 2), 3 since start · evicted 3 (hot capacity 2, warm tt…",
        "streams: grpc 1 · http 4 · 10 HTTP requests/s · 1.5 failed/s · 1 workflow",
        "agent      model  tier  tokens  turns  last turn",
        *(f"agent-{n:03}  demo   warm   1,234      3  {n + 2} s ago" for n in range(6)),
    ]
    head = texts(AT_WORK, 80, 24)[0]
    assert head.startswith(f"agentmem top · {GATEWAY} · ")
    assert head.split(" · ")[-1].split() == ["last", "2.0", "s", "q", "quits"]
    assert len(head) == 80


def test_the_readme_shows_it() -> None:
    readme = (Path(__file__).parents[4] / "README.md").read_text(encoding="utf-8")
    shown = readme.partition("### agentmem top")[2].partition("```\n")[2].partition("```")[0].splitlines()
    assert shown[0].startswith("agentmem top · ")  # with a time
    assert shown[1:] == texts(AT_WORK, 80, len(shown))[1:]


@pytest.mark.parametrize(
    ("height", "there", "gone"),
    [
        (40, "agent-016", ""),
        (18, "streams:", "agent-000"),
        (13, "streams:", "first token"),
        (8, "llama-3.1-8b", "streams:"),
        (5, "gateway up · worker up · store up", "restarts"),
        (3, "gateway up · worker up · store up", "demo"),
    ],
)
def test_what_matters_least_goes_first(height: int, there: str, gone: str) -> None:
    shown = "\n".join(texts(AT_WORK, 120, height))
    assert there in shown
    assert not gone or gone not in shown


def test_what_is_down_is_said_with_the_reason() -> None:
    shown = texts(NO_WORKER, 80, 24)
    assert "worker: nothing listens there" in shown
    assert any(line.split()[:2] == ["worker", "down"] for line in shown)
    assert "agents: the worker does not answer" in shown
    assert NOTHING_ANSWERS[:79] + "…" in texts(NOTHING, 80, 24)
    assert sum("no gateway" in line for line in texts(NOTHING, 80, 24)) == 1


def test_without_a_screen_everything_is_shown() -> None:
    shown = [line.plain for line in plain(AT_WORK, GATEWAY, 200)]
    assert sum(line.startswith("agent-") for line in shown) == 40
    assert not any("q quits" in line or "…" in line for line in shown)


def test_hostile_names_are_shown_and_not_obeyed() -> None:
    hostile = agent("[bold]x\x1b[2J\n\t", 1, types_pb2.TIER_HOT)
    figures = at_work(agents=latest([hostile], 1, all_listed=True), pages={"store": Silence("x\x1b[2J\nand more")})
    for lines in (fitted(figures, GATEWAY, 120, 40), plain(figures, GATEWAY, 200)):
        text = "\n".join(line.plain for line in lines)
        assert "[bold]x\\x1b[2J\\n\\t" in text
        assert "store: x\\x1b[2J\\nand more" in text
        assert "\x1b" not in text
