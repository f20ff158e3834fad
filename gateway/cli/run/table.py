"""How each agent of a run stands, as a table."""

from rich.table import Table
from rich.text import Text

from gateway.cli.run.state import Member, Run
from gateway.cli.run.transcript import color
from gateway.cli.text import printable
from gateway.cli.turn_line import match_name, tiers_of

_STYLES = {"speaking": "bold", "listening": "", "idle": "dim"}


_WIDE = 100
"""Columns of a terminal from which phase and tier have room, too."""


def members_table(run: Run, width: int, most: int | None = None) -> Table:
    """The agents on a terminal of `width` columns; those that speak come first where there is room for `most` only."""
    table = Table(box=None, pad_edge=False)
    wide = width >= _WIDE
    table.add_column("agent", overflow="fold")
    if wide:
        table.add_column("phase", overflow="ellipsis", no_wrap=True)
    table.add_column("state", no_wrap=True, min_width=9)
    table.add_column("turns", justify="right", no_wrap=True)
    table.add_column("ledger", justify="right", no_wrap=True)
    table.add_column("last", no_wrap=True)
    if wide:
        table.add_column("tier", no_wrap=True)
    table.add_column("reused", justify="right", no_wrap=True)
    table.add_column("first token", justify="right", no_wrap=True)
    members = list(run.members.values())
    if most is not None and len(members) > most:
        order = ("speaking", "listening", "idle")
        shown = sorted(members, key=lambda member: order.index(member.doing))[: max(1, most - 1)]
    else:
        shown = members
    for member in shown:
        table.add_row(
            Text(printable(member.name), style=color(run, member.name)),
            *([Text(printable(member.phase))] if wide else []),
            Text(member.doing, style=_STYLES[member.doing]),
            str(member.turns),
            f"{member.ledger_tokens:,}",
            *_last(member, wide=wide),
        )
    if len(shown) < len(members):
        table.add_row(Text(f"and {len(members) - len(shown)} more", style="dim"))
    return table


def _last(member: Member, *, wide: bool) -> list[str]:
    step = member.last
    if step is None:
        return []
    usage = step.told.usage
    first = step.told.timings.time_to_first_token.ToTimedelta().total_seconds()
    return [
        match_name(step.told.cache).upper(),
        *([tiers_of(usage.cached)] if wide else []),
        f"{step.reused:,} of {usage.prompt_tokens:,}",
        f"{first:.2f} s" if usage.completion_tokens else "",
    ]
