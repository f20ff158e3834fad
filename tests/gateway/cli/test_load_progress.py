from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from gateway.cli import load_progress
from gateway.cli.load_progress import Bar, Lines, words


def lines(*told: tuple[str, float]) -> list[str]:
    written: list[str] = []
    with Lines(written.append) as progress:
        for stage, share in told:
            progress.told(stage, share)
    return written


def test_lines() -> None:
    told = [
        ("wait", 0.0),
        ("fetch", 0.3),
        ("fetch", 0.35),
        ("fetch", 0.4),
        ("wait", 0.0),
        ("read", 0.0),
        ("ready", 1.0),
    ]
    assert lines(*told) == [
        words("wait"),
        f"{words('fetch')}: 30%",
        f"{words('fetch')}: 40%",
        words("wait"),
        words("read"),
    ]


def test_what_is_done_at_once_is_not_told() -> None:
    assert lines(("wait", 0.0), ("fetch", 1.0), ("wait", 0.0)) == [words("wait")]


def test_a_stage_of_a_newer_worker() -> None:
    assert lines(("war\x1bm up", 0.0)) == ["war\\x1bm up"]


@given(st.lists(st.floats(0, 1), max_size=300))
def test_a_stage_has_few_lines(shares: list[float]) -> None:
    assert len(lines(*(("read", share) for share in sorted(shares)))) <= 11


def test_a_bar_is_gone_when_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, width=100)
    monkeypatch.setattr(load_progress, "console", lambda: terminal)
    with Bar("[bold]\x1b") as bar:
        bar.told("fetch", 1.0)
        bar.told("read", 0.5)
    written = screen.getvalue()
    assert "[bold]\\x1b: reading the weights" in written
    assert "50%" in written
    assert words("fetch") not in written
    assert written.endswith("\x1b[2K")
