"""A group of commands whose modules are imported when they are used, so that a small command starts quickly."""

import ast
import importlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from agentmem import extras

_SUMMARY_LETTERS = 120


OTHER_PROGRAM = {"ignore_unknown_options": True, "help_option_names": []}
"""Of a command whose arguments are another program's."""

HUB = "inference_service.hub"
"""The module of the commands that look for models and fetch them; only the worker's package knows models."""


def needing_servers() -> AbstractContextManager[None]:
    """As `extras.needing_servers`, whose refusal is the command's."""
    return extras.needing_servers(click.ClickException)


class LazyGroup(click.Group):
    """A click group; `lazy` has commands by name as "module:function", of which help reads the docstrings only."""

    def __init__(self, *, lazy: Mapping[str, str], **settings: Any) -> None:
        super().__init__(**settings)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self.lazy})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        module, _, name = self.lazy[cmd_name].partition(":")
        try:
            with needing_servers():
                command: click.Command = getattr(importlib.import_module(module), name)
        except click.ClickException:
            if ctx.resilient_parsing:  # a shell completes, and has nowhere to show an error
                return None
            raise
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands that begin so, without an import of their modules, and options."""
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        found = [CompletionItem(name, help=self.summary(name)) for name in names]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:  # click knows only the imported ones for "Did you mean …?"
            raise click.NoSuchCommand(error.command_name, possibilities=self.list_commands(ctx), ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.summary(name)) for name in self.list_commands(ctx)])

    def summary(self, name: str) -> str:
        """Return the first sentence of a command's help, without an import of its module."""
        if name not in self.lazy:
            return self.commands[name].get_short_help_str(_SUMMARY_LETTERS)
        module, _, function = self.lazy[name].partition(":")
        if (spec := find_spec(module)) is None or spec.origin is None:
            raise ModuleNotFoundError(module)
        definitions = ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body
        found = (each for each in definitions if isinstance(each, ast.FunctionDef) and each.name == function)
        return click.Command(name, help=ast.get_docstring(next(found))).get_short_help_str(_SUMMARY_LETTERS)
