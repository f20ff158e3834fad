from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.text import Text

from gateway.workflows.cli.view import Lines
from tests.gateway.workflows.cli.events import ABSENT, NEW, RUN, Event, numbered, speaking, spoke, step, usage

TRANSCRIPT = """\
prison · wf-1 · 3 agents on demo
marco took it in · NEW · reused 0 of 10 tokens · prefilled in 0.03 s

phase yard, round 1 — whisper, all_at_once: marco, danny, warden
danny ▸ I saw nothing.
  NEW · reused 0 of 20 tokens · first token 0.02 s · 10.0 tokens/s
  danny → marco
marco ▸ The boat is green.
  EXTEND · reused 10 of 30 tokens (hot 10) · first token 0.02 s · 12.0 tokens/s
  marco → danny (whisper); warden only learns of it
danny noted: Noted:
  the boat.
  EXTEND · reused 25 of 40 tokens (hot 25) · first token 0.02 s · 16.0 tokens/s

phase verdict, round 1 — public, round_robin: warden, marco, danny
warden ▸ Green.
  NEW · reused 0 of 50 tokens · first token 0.02 s · 4.0 tokens/s · replayed
  warden → marco, danny
marco ▸ I vote green
  EXTEND · reused 16 of 60 tokens (warm 16) · first token 0.02 s · 6.0 tokens/s · missed: evicted · cut at the length limit
  marco → nobody
outcome of verdict after 1 round
  winner  green
  votes   marco: green, danny: none

succeeded: 4 turns in 11.0 s · prefilled 159 tokens, where sending each ledger again takes 200: 20% saved · \
20 computed another time · 1 replayed
"""  # noqa: E501


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
