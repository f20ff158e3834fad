from collections.abc import Iterator
from typing import NamedTuple

import click

from benchmarks.__main__ import overview
from cache_service.cluster.offline.commands import main as ledgers
from cache_service.offline.commands import main as store
from gateway.cli.groups import Lazy
from gateway.cli.main import main
from inference_service.hub.commands import main as hub

_ELSEWHERE = {
    "agentmem store": store,
    "agentmem models search": hub.commands["search"],
    "agentmem models pull": hub.commands["pull"],
    **{f"agentmem cluster {name}": command for name, command in ledgers.commands.items()},
}
"""Commands that run in a process of their own."""
_COLUMNS = 100


class Described(NamedTuple):
    words: str
    command: click.Command
    context: click.Context


def page() -> str:
    return "\n".join(_section(each) for each in commands())


def commands() -> Iterator[Described]:
    """Yield all commands, groups before what is in them."""
    yield from _walk("agentmem", main, None)


def flags(command: click.Command) -> list[str]:
    options = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
    return [flag for option in options for flag in (*option.opts, *option.secondary_opts)]


def _walk(words: str, command: click.Command, parent: click.Context | None) -> Iterator[Described]:
    command = _ELSEWHERE.get(words, command.load() if isinstance(command, Lazy) else command)
    context = click.Context(command, info_name=words.split()[-1], parent=parent, terminal_width=_COLUMNS)
    yield Described(words, command, context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None and not inner.hidden:
                yield from _walk(f"{words} {name}", inner, context)


def _section(each: Described) -> str:
    text = each.command.get_help(each.context)
    text = f"{text}\n\n{overview()}" if each.words == "agentmem bench" else text
    return f"{'#' * min(len(each.words.split()) + 1, 4)} {each.words}\n\n```text\n{text}\n```\n"
