from __future__ import annotations

import io

import pytest
from rich.console import Console

from agentmem.v1 import workflow_pb2
from gateway.cli.workflows.state import Run
from gateway.cli.workflows.view import Lines, Screen, waiting
from tests.gateway.cli.workflows.events import ABSENT, NEW, RUN, delta, numbered, speaking, spoke, step, usage, workflow

TRANSCRIPT = """\
prison · wf-1 · 3 agents on demo
marco took it in · NEW · reused 0 of 10 tokens · prefilled in 0.03 s

phase yard, round 1 — whisper, all_at_once: marco, danny, warden
danny ▸ I saw nothing.
  NEW · reused 0 of 20 tokens · first token 0.02 s · 10.0 tokens/s
marco ▸ The boat is green.
  EXTEND · reused 10 of 30 tokens (hot 10) · first token 0.02 s · 12.0 tokens/s
  marco → danny (whisper); warden only learns of it
  danny → marco
danny noted: Noted:
  the boat.
  EXTEND · reused 25 of 40 tokens (hot 25) · first token 0.02 s · 16.0 tokens/s

phase verdict, round 1 — public, round_robin: warden, marco, danny
warden ▸ Green.
  NEW · reused 0 of 50 tokens · first token 0.02 s · 4.0 tokens/s · replayed
  warden → marco, danny
marco ▸ I vote green
  EXTEND · reused 16 of 60 tokens (warm 16) · first token 0.02 s · 6.0 tokens/s · missed: evicted · cut at the length limit
outcome of verdict after 1 round
  winner  green
  votes   marco: green, danny: none
"""  # noqa: E501
TABLE = """\
agent   phase    state      turns  ledger  last    tier    reused  first token
warden  verdict  idle           1      52  NEW     none   0 of 50       0.02 s
marco   verdict  idle           2      63  EXTEND  warm  16 of 60       0.02 s
danny   verdict  idle           1      48  EXTEND  hot   25 of 40       0.02 s
"""


def stripped(text: str) -> str:
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def test_lines() -> None:
    file = io.StringIO()
    run = Run()
    with Lines(run, Console(file=file, width=200, markup=False, highlight=False)) as view:
        for event in RUN:
            if run.add(event):
                view.show(event)
    assert stripped(file.getvalue()) == TRANSCRIPT
    view.ended()
    assert stripped(file.getvalue()).removeprefix(TRANSCRIPT).startswith(f"\n{TABLE}succeeded: 4 turns in 13.0 s · ")


class Terminal:
    """A screen of `width` columns that does what rich tells it: cursor up, erase line, and text."""

    def __init__(self, width: int, height: int) -> None:
        self.file = io.StringIO()
        self.console = Console(
            file=self.file,
            force_terminal=True,
            color_system=None,
            width=width,
            height=height,
            markup=False,
            highlight=False,
            legacy_windows=False,
        )

    def rows(self) -> list[str]:
        rows, row, column = [""], 0, 0
        text = self.file.getvalue()
        index = 0
        while index < len(text):
            if text[index] == "\x1b":
                end = next(i for i in range(index + 2, len(text)) if text[i].isalpha())
                argument, command = text[index + 2 : end], text[end]
                if command == "A":
                    row -= int(argument or 1)
                    assert row >= 0
                elif command == "K":
                    rows[row] = ""
                else:
                    assert command in "hlm"
                index = end + 1
                continue
            if text[index] == "\n":
                row, column = row + 1, 0
                rows += [""] * (row + 1 - len(rows))
            elif text[index] == "\r":
                column = 0
            else:
                rows[row] = rows[row][:column].ljust(column) + text[index] + rows[row][column + 1 :]
                column += 1
            index += 1
        return [line.rstrip() for line in rows]


def test_what_is_said_grows_below_what_was_said() -> None:
    terminal, run = Terminal(150, 40), Run()
    with Screen(run, terminal.console, clock=iter(range(1000)).__next__) as view:
        for event in RUN[:9]:
            run.add(event)
            view.show(event)
        rows = terminal.rows()
        assert rows[3:7] == [
            "phase yard, round 1 — whisper, all_at_once: marco, danny, warden",
            "marco ▸ The boat is green.",
            "danny ▸ I saw nothing.",
            "",
        ]
        assert [line.split()[:3] for line in rows[8:11]] == [
            ["warden", "yard", "idle"],
            ["marco", "yard", "speaking"],
            ["danny", "yard", "speaking"],
        ]
        view.outage("it is \x1b[2J restarting")
        assert rows[4:6] == [line for line in terminal.rows() if line.startswith(("marco ▸", "danny ▸"))]
        assert "… waiting: it is \\x1b[2J restarting; the run goes on where it was" in terminal.rows()
        for event in RUN[9:]:
            run.add(event)
            view.show(event)
    expected = TRANSCRIPT.splitlines()
    expected.insert(4, waiting("it is \x1b[2J restarting"))
    assert terminal.rows()[: len(expected)] == expected
    assert not any(terminal.rows()[len(expected) :])  # what is not settled is gone


def test_a_screen_that_is_too_small() -> None:
    names = [f"agent{number}" for number in range(40)]
    many = workflow()
    del many.agents[:]
    many.agents.extend(workflow_pb2.WorkflowAgent(name=name) for name in names)
    events = numbered(
        {"started": workflow_pb2.WorkflowStarted(workflow=many)},
        speaking("agent30", "p"),
        delta("agent30", "long " * 400),
    )
    terminal, run = Terminal(80, 20), Run()
    with Screen(run, terminal.console) as view:
        for event in events:
            run.add(event)
            view.show(event)
        rows = [row for row in terminal.rows() if row]
        assert len(rows) <= 20
        table = rows[next(i for i, row in enumerate(rows) if row.startswith("agent ")) + 1 :]
        assert table[0].split()[:3] == ["agent30", "speaking", "0"]


@pytest.mark.parametrize("text", ["\x1b[2J", "[bold]x[/bold]", "a\u202eb", "one\r\ntwo"])
def test_texts_do_not_steer_the_terminal(text: str) -> None:
    file, run = io.StringIO(), Run()
    view = Lines(run, Console(file=file, width=200, markup=False, highlight=False))
    for event in numbered(speaking("a", "p"), spoke("a", text, "p", step(NEW, usage(1), ABSENT))):
        run.add(event)
        view.show(event)
    shown = file.getvalue()
    assert not set("\x1b\u202e\r") & set(shown)
    assert text not in shown or text.startswith("[bold]")
