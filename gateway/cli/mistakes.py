"""What the user has to mend, with the status that click has for wrong use: 2."""

from collections.abc import Sequence
from typing import IO, Any

import click


class Mistake(click.ClickException):
    """Nothing was done, because of something on the command line, in a settings file, or on this machine."""

    exit_code = 2


class Mistakes(Mistake):
    """Several of them, each a line of its own that says where it is."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("\n".join(lines))

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(self.message, file=file, err=file is None)
