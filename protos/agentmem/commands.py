"""Groups of commands. Imports little, since overviews and completion need it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click


class Commands(click.Group):
    """Answers a mistake on the command line in one line, which click writes in four."""

    def make_context(self, *of: Any, **given: Any) -> click.Context:
        with _one_line():
            return super().make_context(*of, **given)

    def invoke(self, ctx: click.Context) -> Any:
        with _one_line():
            return super().invoke(ctx)


@contextmanager
def _one_line() -> Iterator[None]:
    try:
        yield
    except click.exceptions.NoArgsIsHelpError:
        raise
    except click.UsageError as error:
        said = error.format_message()
        end = "" if said.endswith((".", "?")) else "."
        raise mistake(f"{said}{end} `{error.ctx.command_path} --help` says more." if error.ctx else said) from error


def mistake(message: str) -> click.ClickException:
    """Return a Mistake, which takes long to import."""
    from agentmem.console import Mistake

    return Mistake(message)
