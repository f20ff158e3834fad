"""Tables of commands, which are imported or run when used."""

import importlib
import os
import sys
from contextlib import AbstractContextManager
from difflib import get_close_matches
from importlib.util import find_spec
from typing import Any

import click

from agentmem import extras
from agentmem.commands import mistake


def needing_servers() -> AbstractContextManager[None]:
    """Raise `extras.needing_servers`' refusal as a ClickException."""
    return extras.needing_servers(click.ClickException)


class DefaultGroup(click.Group):
    """A group that runs `default` if no command is named."""

    def __init__(self, *, default: str, **given: Any) -> None:
        super().__init__(**given)
        self._default = default

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        names_none = not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names)
        if names_none and not ctx.resilient_parsing:
            args = [self._default, *args]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Raises Mistake for a name of something that is listed here, with the commands for it."""
        name = args[0]
        unknown = name not in self.commands and not name.startswith("-") and not get_close_matches(name, self.commands)
        if unknown and not ctx.resilient_parsing:
            does = {"show": "shows it", "pull": "downloads it"}
            ways = [f"`{ctx.command_path} {each} {name}` {does[each]}" for each in does if each in self.commands]
            raise mistake(f"{ctx.command_path} has no command {name!r}; {', '.join(ways)}")
        return super().resolve_command(ctx, args)


class Lazy(click.Command):
    """A command that is imported when used; `target` is "module:name"."""

    def __init__(self, name: str, target: str, summary: str) -> None:
        super().__init__(name, short_help=summary)
        self._target = target

    def load(self) -> click.Command:
        module, _, name = self._target.partition(":")
        with needing_servers():
            command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        try:
            command = self.load()
        except click.ClickException:
            if not extra.get("resilient_parsing"):
                raise
            return super().make_context(info_name, args, parent, **extra)  # completion has nowhere to show an error
        return command.make_context(info_name, args, parent, **extra)


def program(name: str, summary: str, *words: str, needs: tuple[str, ...] = (), missing: str = "") -> click.Command:
    """Return a command that runs `python -m WORDS` in this process's place, since services never import each other.

    If a module that it `needs` is not installed, it says so, or `missing`.
    """

    def run(arguments: tuple[str, ...]) -> None:
        if absent := next((each for each in needs if not _exists(each)), ""):
            if missing:
                raise click.UsageError(missing, click.get_current_context().parent)  # `program`'s name may be ""
            with needing_servers():
                raise ModuleNotFoundError(name=absent)
        os.execv(sys.executable, [sys.executable, "-m", *words, *arguments])

    everything = click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)
    settings = {"ignore_unknown_options": True, "help_option_names": []}
    return click.Command(name, settings, run, [everything], help=summary, short_help=summary)


def _exists(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # its package
        return False
