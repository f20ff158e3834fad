"""A group of commands whose modules are imported when they are used, so that a small command starts quickly."""

import importlib
from collections.abc import Mapping
from typing import Any

import click

_SUMMARY_LETTERS = 100


class LazyGroup(click.Group):
    """A click group; `lazy` has commands by name as ("module:attribute", the first sentence of their help)."""

    def __init__(self, *, lazy: Mapping[str, tuple[str, str]], **settings: Any) -> None:
        super().__init__(**settings)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self.lazy})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        module, _, name = self.lazy[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:  # click knows only the imported ones for "Did you mean …?"
            raise click.NoSuchCommand(error.command_name, possibilities=self.list_commands(ctx), ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._summary(ctx, name)) for name in self.list_commands(ctx)])

    def _summary(self, ctx: click.Context, name: str) -> str:
        if name in self.lazy:
            return self.lazy[name][1]
        command = self.get_command(ctx, name)
        return command.get_short_help_str(_SUMMARY_LETTERS) if command else ""
