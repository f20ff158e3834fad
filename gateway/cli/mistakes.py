"""What the user has to mend, with the status that click has for wrong use: 2."""

import click


class Mistake(click.ClickException):
    """Nothing was done, because of something on the command line, in a settings file, or on this machine."""

    exit_code = 2
