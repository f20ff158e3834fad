"""A model that is fetched before anything starts, by a child that shows its progress."""

import subprocess
from contextlib import suppress
from typing import Final

import click

from agentmem.process.model_sources import DEMO, expanded, is_path
from gateway.cli.up.child import bound
from gateway.cli.up.settings import UpSettings

_INTERRUPTED: Final = 130
_PULL_SECONDS: Final = 5.0
"""For a download's end; what it has fetched is on disk."""


def fetch(source: str, settings: UpSettings) -> None:
    """Fetch a model, unless it is here. Raises Exit after a reported failure."""
    if settings.offline or source == DEMO or is_path(source) or expanded(source).is_dir():
        return
    with bound(("inference_service.hub", "fetch", source), _PULL_SECONDS, None) as fetching:
        try:
            status = fetching.wait()
        except KeyboardInterrupt:  # the child has it, too, and reports it
            with suppress(subprocess.TimeoutExpired):
                fetching.wait(_PULL_SECONDS)
            raise click.exceptions.Exit(_INTERRUPTED) from None
    if status:
        raise click.exceptions.Exit(status)
