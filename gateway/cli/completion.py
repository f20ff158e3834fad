"""`agentmem completion SHELL`, and what shells complete: commands, options, and names that the gateway is asked for.

A completion never hangs and never writes: a gateway that does not answer at once has no names. It asks as the command
would, but reads no file with a key, and shows none to another machine in clear text: then there are no names. Only
names that mean nothing to a shell are offered, because bash inserts them as they are, and clients choose them.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, Final

import click
from click.shell_completion import CompletionItem, get_completion_class

from agentmem import AsyncClient
from agentmem.errors import AgentmemError

_PROGRAM, _VARIABLE = "agentmem", "_AGENTMEM_COMPLETE"
_SECONDS: Final = 1.0
_MOST: Final = 200
_HARMLESS: Final = re.compile(r"\w[\w.@/+-]*", re.ASCII)


@click.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def completion(shell: str) -> None:
    """Print the script with which SHELL completes commands, options, and names of agents and models.

    \b
    bash    echo 'eval "$(agentmem completion bash)"' >> ~/.bashrc       (bash 4.4 or newer)
    zsh     echo 'eval "$(agentmem completion zsh)"' >> ~/.zshrc         (after compinit)
    fish    agentmem completion fish > ~/.config/fish/completions/agentmem.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(click.get_current_context().find_root().command, {}, _PROGRAM, _VARIABLE).source())


class SettingsCommand(click.Command):
    """A command whose options are those of a class of settings, `settings`, which reads them by itself."""

    def __init__(self, *, settings: Any, **given: Any) -> None:
        super().__init__(**given)
        self._settings = settings

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the flags that begin so."""
        found = super().shell_complete(ctx, incomplete)
        for name, field in self._settings.model_fields.items():
            words = name.replace("_", "-")
            flags = (f"--{words}", f"--no-{words}") if field.annotation is bool else (f"--{words}",)
            found += [CompletionItem(flag, help=field.description) for flag in flags if flag.startswith(incomplete)]
        return found


async def _agents(agentmem: AsyncClient) -> AsyncIterator[str]:
    async for agent in agentmem.agents():
        yield agent.name


async def _models(agentmem: AsyncClient) -> AsyncIterator[str]:
    async for model in agentmem.models.list():
        yield model.name


def _asked(
    names: Callable[[AsyncClient], AsyncIterator[str]],
) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Return what completes a parameter with names of the gateway."""

    def complete(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        from gateway.cli.client import given_client, given_option  # which takes from here what completes its options

        found: dict[str, None] = {}

        async def ask() -> None:
            options = given_client(context)
            if options.shows_key or given_option(context, "key_file"):
                return
            async with AsyncClient(
                options.gateway,
                key=options.key,
                tls=options.tls or False,
                patience=0,
                timeout=_SECONDS,
                on_outage=lambda _: None,
            ) as client:
                async for name in names(client):
                    if name.startswith(incomplete) and _HARMLESS.fullmatch(name):
                        found[name] = None
                    if len(found) >= _MOST:
                        return

        with suppress(AgentmemError, click.ClickException, OSError, ValueError):  # those that came are offered
            asyncio.run(asyncio.wait_for(ask(), _SECONDS))
        return list(found)

    return complete


agent_names = _asked(_agents)
"""Completes a parameter with names of agents."""

model_names = _asked(_models)
"""Completes a parameter with names of models."""
