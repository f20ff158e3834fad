"""Sections on a screen: what matters least goes first where the screen is small."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from rich.text import Text

from gateway.cli.top import sections
from gateway.cli.top.figures import Figures

NOTHING_ANSWERS: Final = (
    "nothing answers; start Agentmem with `agentmem up`, or name its addresses with --metrics and --gateway"
)
_QUIT: Final = "q quits"
_FEWEST_AGENTS: Final = 3
"""Lines of a table of agents that is worth its room: its titles, and two agents."""


def plain(figures: Figures, gateway: str, width: int) -> list[Text]:
    """All there is, for a pipe or a terminal that scrolls."""
    parts = (sections.processes, sections.models, sections.latencies, sections.storage, sections.agents)
    return _spaced([[_head(figures, gateway, width, "")], *(part(figures, width) for part in parts)])


def fitted(figures: Figures, gateway: str, width: int, height: int) -> list[Text]:
    """What fits: `height` lines at most. Blank lines go first, then agents, times, storage, and models at the end."""
    head = [_head(figures, gateway, width, _QUIT)]
    if figures.silent:
        head.append(Text(NOTHING_ANSWERS, "bold red", no_wrap=True, overflow="ellipsis"))
        head[-1].truncate(width, overflow="ellipsis")
    told = [sections.processes(figures, width), sections.models(figures, width)]
    times, storage, agents = (part(figures, width) for part in (sections.latencies, sections.storage, sections.agents))
    fewest = agents[:_FEWEST_AGENTS]
    for parts in (
        [head, *told, times, storage, fewest],
        [head, *told, times, storage],
        [head, *told, storage],
        [head, *told],
    ):
        for lines in (_spaced(parts), _together(parts)):
            if len(lines) <= height:
                room = height - len(lines)
                return lines + agents[len(fewest) : len(fewest) + room] if parts[-1] is fewest else lines
    return _together([head, sections.states(figures, width), told[1]])[: max(0, height)]


def _head(figures: Figures, gateway: str, width: int, right: str) -> Text:
    at = datetime.fromisoformat(figures.time).astimezone()
    over = f"last {figures.interval_seconds:.1f} s" if figures.interval_seconds else "measuring …"
    head = Text(no_wrap=True, overflow="ellipsis").append("agentmem top", "bold")
    head.append(f" · {gateway} · {at:%H:%M:%S} · {over}")
    head.truncate(width, overflow="ellipsis")
    free = width - head.cell_len - len(right)
    if right and free >= 2:
        head.append(" " * free).append(right, "dim")
    return head


def _spaced(parts: list[list[Text]]) -> list[Text]:
    lines: list[Text] = []
    for part in parts:
        if part and lines:
            lines.append(Text())
        lines += part
    return lines


def _together(parts: list[list[Text]]) -> list[Text]:
    return [line for part in parts for line in part]
