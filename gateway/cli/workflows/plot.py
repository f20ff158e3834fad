"""Each agent's cache state over the phases, as SVG: where each step's prompt came from.

Imports matplotlib, which is an extra: `pip install 'agentmem[report]'`.
"""

import io
from typing import Final, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from agentmem.words import tier_name
from gateway.cli.text import printable
from gateway.cli.workflows.state import Run, Step

_COLORS: Final = {"hot": "#d1495b", "warm": "#edae49", "remote": "#00798c", "new": "#c3ccd5"}
_LISTENING: Final = 0.55


class Bar(NamedTuple):
    """A step: its place, and its prompt's tokens from bottom to top."""

    column: int
    step: Step
    tokens: dict[str, int]


def svg(run: Run) -> str:
    """Return the plot as an SVG document, the same for the same run."""
    file = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "agentmem", "font.size": 8}):
        figure(run).savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return file.getvalue()


def figure(run: Run) -> Figure:
    """Return a figure with a row for each agent and a column for each of its steps, grouped by phase."""
    groups, bars = layout(run)
    columns = max(1, sum(width for _, width in groups))
    names = list(bars) or [""]
    drawn = Figure(figsize=(min(40.0, max(7.0, 1.6 + 0.22 * columns)), 1.2 + 0.9 * len(names)), layout="constrained")
    rows = drawn.subplots(len(names), sharex=True, sharey=True, squeeze=False)[:, 0]
    for name, axes in zip(names, rows, strict=True):
        _draw(axes, name, bars.get(name, []))
    left = -0.5
    for index, (phase, width) in enumerate(groups):
        for axes in rows if index % 2 else ():
            axes.axvspan(left, left + width, color="black", alpha=0.05, linewidth=0, zorder=0)
        above = {"transform": rows[0].get_xaxis_transform(), "ha": "center", "parse_math": False}
        rows[0].text(left + width / 2, 1.02, printable(phase), **above)
        left += width
    rows[-1].set_xlim(-0.5, columns - 0.5)
    rows[-1].set_xticks([])
    rows[-1].set_xlabel("steps in their order, by phase; pale ones listened")
    patches = [Patch(color=color, label=name) for name, color in _COLORS.items()]
    drawn.legend(handles=patches, loc="outside upper right", ncols=len(patches), frameon=False)
    drawn.supylabel("prompt tokens")
    return drawn


def layout(run: Run) -> tuple[list[tuple[str, int]], dict[str, list[Bar]]]:
    """Return the phases with their widths in columns, and each agent's bars, which begin at the left of each phase."""
    groups: list[tuple[str, int]] = []
    bars: dict[str, list[Bar]] = {name: [] for name in run.members}
    left = 0
    for part in run.parts.values():
        used = dict.fromkeys(bars, 0)
        for step in part.steps:
            name = step.event.agent_id
            bars[name].append(Bar(left + used[name], step, tokens_of(step)))
            used[name] += 1
        if width := max(used.values(), default=0):
            groups.append((part.name, width))
            left += width
    return groups, bars


def tokens_of(step: Step) -> dict[str, int]:
    """Return where a step's prompt came from; the sum is the prompt."""
    cached = {tier_name(part.tier): part.tokens for part in step.event.usage.cached}
    return {**{tier: cached.get(tier, 0) for tier in ("hot", "warm", "remote")}, "new": step.prefilled}


def _draw(axes: Axes, name: str, bars: list[Bar]) -> None:
    columns, bottoms = [bar.column for bar in bars], [0] * len(bars)
    for source, color in _COLORS.items():
        heights = [bar.tokens[source] for bar in bars]
        colors = [(color, 1.0 if bar.step.spoke else _LISTENING) for bar in bars]
        axes.bar(columns, heights, bottom=bottoms, width=0.8, color=colors or color)
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    axes.set_ylabel(printable(name), rotation=0, ha="right", va="center", parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
