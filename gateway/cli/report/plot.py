"""Each agent's cache state over the phases, as SVG: where each step's prompt came from.

Imports matplotlib, which is an extra: `pip install 'agentmem[report]'`.
"""

import io
from collections.abc import Iterator
from typing import Final, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from agentmem.v1 import types_pb2
from gateway.cli.run.state import Run, Step
from gateway.cli.text import printable

_COLORS: Final = {"hot": "#d1495b", "warm": "#edae49", "remote": "#00798c", "new": "#c3ccd5"}
_LISTENING: Final = 0.55


class Bar(NamedTuple):
    """A step: its place, and its prompt's tokens from bottom to top."""

    column: int
    step: Step
    tokens: dict[str, int]


def svg(run: Run) -> str:
    """The plot as an SVG document, the same for the same run."""
    file = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "agentmem", "font.size": 8}):
        figure(run).savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return file.getvalue()


def figure(run: Run) -> Figure:
    """A row for each agent, a column for each of its steps, grouped by phase."""
    groups, bars = layout(run)
    columns = max(1, sum(width for _, width in groups))
    names = list(bars) or [""]
    drawn = Figure(figsize=(min(40.0, max(7.0, 1.6 + 0.22 * columns)), 1.2 + 0.9 * len(names)), layout="constrained")
    rows = drawn.subplots(len(names), sharex=True, sharey=True, squeeze=False)[:, 0]
    for name, axes in zip(names, rows, strict=True):
        _draw(axes, name, bars.get(name, []))
        _shade(axes, groups)
    _name_phases(rows[0], groups)
    rows[-1].set_xlim(-0.5, columns - 0.5)
    rows[-1].set_xticks([])
    rows[-1].set_xlabel("steps in their order, by phase; pale ones listened")
    patches = [Patch(color=color, label=name) for name, color in _COLORS.items()]
    drawn.legend(handles=patches, loc="outside upper right", ncols=len(patches), frameon=False)
    drawn.supylabel("prompt tokens")
    return drawn


def layout(run: Run) -> tuple[list[tuple[str, int]], dict[str, list[Bar]]]:
    """The phases with their widths in columns, and the bars of each agent: in a phase each begins at its left."""
    groups: list[tuple[str, int]] = []
    bars: dict[str, list[Bar]] = {name: [] for name in run.members}
    left = 0
    for part in run.parts.values():
        used = dict.fromkeys(bars, 0)
        for step in part.steps:
            name = step.told.agent_id
            bars[name].append(Bar(left + used[name], step, tokens_of(step)))
            used[name] += 1
        if width := max(used.values(), default=0):
            groups.append((part.name, width))
            left += width
    return groups, bars


def tokens_of(step: Step) -> dict[str, int]:
    """Where a step's prompt came from; their sum is the prompt."""
    return {
        "hot": step.reused_from(types_pb2.TIER_HOT),
        "warm": step.reused_from(types_pb2.TIER_WARM),
        "remote": step.reused_from(types_pb2.TIER_REMOTE),
        "new": step.prefilled,
    }


def _draw(axes: Axes, name: str, bars: list[Bar]) -> None:
    for listening in (False, True):
        chosen = [bar for bar in bars if bar.step.spoke is not listening]
        columns = [bar.column for bar in chosen]
        bottoms = [0] * len(chosen)
        for source, color in _COLORS.items():
            heights = [bar.tokens[source] for bar in chosen]
            alpha = _LISTENING if listening else 1.0
            axes.bar(columns, heights, bottom=bottoms, width=0.8, color=color, alpha=alpha)
            bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    axes.set_ylabel(printable(name), rotation=0, ha="right", va="center", parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)


def _shade(axes: Axes, groups: list[tuple[str, int]]) -> None:
    for index, (_, left, right) in enumerate(_edges(groups)):
        if index % 2:
            axes.axvspan(left, right, color="black", alpha=0.05, linewidth=0, zorder=0)


def _name_phases(axes: Axes, groups: list[tuple[str, int]]) -> None:
    for name, left, right in _edges(groups):
        axes.text(
            (left + right) / 2,
            1.02,
            printable(name),
            transform=axes.get_xaxis_transform(),
            ha="center",
            parse_math=False,
        )


def _edges(groups: list[tuple[str, int]]) -> Iterator[tuple[str, float, float]]:
    left = -0.5
    for name, width in groups:
        yield name, left, left + width
        left += width
