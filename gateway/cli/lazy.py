"""A group of commands whose modules are imported when they are used, so that a small command starts like one."""

import importlib
from collections.abc import Mapping
from typing import NamedTuple

import click

_SUMMARY_LETTERS = 100


class LazyCommand(NamedTuple):
    """Where a command is, "module:name", and what the overview says of it: the first sentence of its own help."""

    path: str
    summary: str


class LazyGroup(click.Group):
    """A group of `LazyCommand`s by name; its own help imports none of them."""

    def __init__(self, *, lazy: Mapping[str, LazyCommand], **settings: object) -> None:
        super().__init__(**settings)  # type: ignore[arg-type]
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, sorted as click sorts them."""
        return sorted({*super().list_commands(ctx), *self.lazy})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, imported."""
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        module, _, name = self.lazy[cmd_name].path.partition(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the arguments begin with. Raises NoSuchCommand, which names those that are like it."""
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            raise click.NoSuchCommand(error.command_name, possibilities=self.list_commands(ctx), ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The overview, from the summaries."""
        names = self.list_commands(ctx)
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._summary(ctx, name)) for name in names])

    def _summary(self, ctx: click.Context, name: str) -> str:
        if name in self.lazy:
            return self.lazy[name].summary
        command = self.get_command(ctx, name)
        assert command is not None
        return command.get_short_help_str(limit=_SUMMARY_LETTERS)
