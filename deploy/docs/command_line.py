"""The command line, from the click commands."""

from collections import Counter
from collections.abc import Callable, Iterator
from inspect import cleandoc
from typing import NamedTuple

import click

from benchmarks.__main__ import NAMES, summary
from cache_service.offline.cluster.commands import main as ledgers
from cache_service.offline.commands import main as store
from deploy.docs.tables import code, table
from gateway.cli.main import main
from inference_service.hub.commands import main as hub

_ELSEWHERE = {
    "agentmem store": store,
    "agentmem models search": hub.commands["search"],
    "agentmem models pull": hub.commands["pull"],
    **{f"agentmem cluster {name}": command for name, command in ledgers.commands.items()},
}
"""Commands that `agentmem` runs in a process of their own."""
_MORE: dict[str, Callable[[], str]] = {
    "agentmem bench": lambda: table(
        ("name", "what it measures"), ((code(name), summary(NAMES[name])) for name in NAMES)
    ),
    "agentmem doctor": lambda: "Takes the [settings of `agentmem up`](settings.md#agentmem-up), and `--json`.\n",
    "agentmem up": lambda: "Takes [settings](settings.md#agentmem-up).\n",
}
"""What a command takes that is no option of click."""
_COMMON = 5
"""An option that so many commands have with the same help is described once, at the head of the page."""


class Described(NamedTuple):
    """A command, the words that call it, and its context."""

    words: str
    command: click.Command
    context: click.Context


def page() -> str:
    """Return a section for each command, after the options that most of them have."""
    found = list(commands())
    counts = Counter(_key(option, each.context) for each in found for option in _options(each.command))
    common = {key for key, count in counts.items() if count >= _COMMON}
    parts = ["## Common options\n", _table(sorted(common)), *(_section(each, common) for each in found)]
    return "\n".join(parts)


def commands() -> Iterator[Described]:
    """Yield all commands, groups before what is in them."""
    yield from _walk("agentmem", main, None)


def flags(command: click.Command) -> list[str]:
    """Return all flags of a command."""
    return [flag for option in _options(command) for flag in (*option.opts, *option.secondary_opts)]


def _walk(words: str, command: click.Command, parent: click.Context | None) -> Iterator[Described]:
    command = _ELSEWHERE.get(words, command)
    context = click.Context(command, info_name=words.split()[-1], parent=parent)
    yield Described(words, command, context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None and not inner.hidden:
                yield from _walk(f"{words} {name}", inner, context)


def _section(each: Described, common: set[tuple[str, str]]) -> str:
    usage = " ".join((each.words, *each.command.collect_usage_pieces(each.context)))
    keys = [_key(option, each.context) for option in _options(each.command)]
    shared = [code(option.split()[0].rstrip(",")) for option, text in keys if (option, text) in common]
    more = _MORE.get(each.words)
    parts = [
        f"{'#' * min(len(each.words.split()) + 1, 4)} {each.words}\n",
        f"```text\n{usage}\n```\n",
        cleandoc(each.command.help or "").replace("\b\n", "") + "\n",
        more() if more is not None else _table([key for key in keys if key not in common]),
        f"[Common options](#common-options): {', '.join(shared)}.\n" if shared else "",
    ]
    return "\n".join(part for part in parts if part)


def _options(command: click.Command) -> list[click.Option]:
    return [option for option in command.params if isinstance(option, click.Option) and not option.hidden]


def _key(option: click.Option, context: click.Context) -> tuple[str, str]:
    record = option.get_help_record(context)
    assert record is not None
    return record


def _table(records: list[tuple[str, str]]) -> str:
    return table(("option", "meaning"), ((code(option), meaning) for option, meaning in records))
