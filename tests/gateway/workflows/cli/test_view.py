from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.text import Text

from gateway.workflows.cli.view import Lines
from tests.gateway.workflows.cli.events import ABSENT, NEW, RUN, Event, numbered, speaking, spoke, step, usage

TRANSCRIPT = """\
prison · wf-1 · 3 agents on demo
marco took it in · NEW · cache hit 0/10 (0 %) · prefill 0.03 s

phase yard, round 1 — whisper, all_at_once: marco, danny, warden
danny ▸ I saw nothing.
  NEW · cache hit 0/20 (0 %) · TTFT 0.02 s · 10.0 tokens/s
  danny → marco
marco ▸ The boat is green.
  EXTEND · cache hit 10/30 (33 %): hot 10 · TTFT 0.02 s · 12.0 tokens/s
  marco → danny (whisper); warden only learns of it
danny noted: Noted:
  the boat.
  EXTEND · cache hit 25/40 (62 %): hot 25 · TTFT 0.02 s · 16.0 tokens/s

phase verdict, round 1 — public, round_robin: warden, marco, danny
warden ▸ Green.
  NEW · cache hit 0/50 (0 %) · TTFT 0.02 s · 4.0 tokens/s · replayed
  warden → marco, danny
marco ▸ I vote green
  EXTEND · cache hit 16/60 (27 %): warm 16 · TTFT 0.02 s · 6.0 tokens/s · missed: evicted · cut at the length limit
  marco → nobody
outcome of verdict after 1 round
  winner  green
  votes   marco: green, danny: none

succeeded: 4 turns in 11.0 s · computed 159 tokens, where sending each ledger again takes 200: 20 % saved · \
20 of them again · 1 replayed
"""


def stripped(text: str) -> str:
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def shown(*events: Event) -> str:
    file, lines = io.StringIO(), Lines()
    to = Console(file=file, width=200, markup=False, highlight=False)
    for event in events:
        for line in lines.of(event):
            to.print(line, soft_wrap=isinstance(line, Text))
    return file.getvalue()


def test_lines() -> None:
    assert stripped(shown(*RUN)) == TRANSCRIPT


@pytest.mark.parametrize("text", ["\x1b[2J", "[bold]x[/bold]", "a\u202eb", "one\r\ntwo"])
def test_texts_do_not_steer_the_terminal(text: str) -> None:
    written = shown(*numbered(speaking("a", "p"), spoke("a", text, "p", step(NEW, usage(1), ABSENT))))
    assert not set("\x1b\u202e\r") & set(written)
    assert text not in written or text.startswith("[bold]")
