"""Starts a gateway and loads a model for a conversation."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, NamedTuple

import click

from agentmem import AsyncClient, errors, layout
from agentmem.addresses import listens
from agentmem.console import Mistake, is_screen
from agentmem.process.model_sources import parse
from agentmem.words import printable
from gateway.cli.client import Client
from gateway.cli.groups import needing_servers
from gateway.cli.live_line import LiveLine
from gateway.cli.loading import loaded, waited_for

_NAMED: Final = 10


class Served(NamedTuple):
    """A client of a gateway that has loaded `model`; `http` is "" where the gateway was started by somebody else."""

    client: Client
    model: str
    http: str = ""


def answers(client: Client) -> bool:
    """Return whether nothing has to be started: a gateway was named, or something listens at the default address."""
    return client.gateway != layout.GRPC or client.tls is not None or listens(client.gateway)


@contextmanager
def serving(client: Client, model: str, *, keep: bool) -> Iterator[Served]:
    """Yield a gateway that has loaded `model`, as for `agentmem up --model`. "" is the default model.

    If nobody listens at the default address, a stack is started in the background, and stopped at the end of the block,
    unless `keep`, or of this process. Raises ClickException.
    """
    if answers(client):
        name = _name(model) if model else client.ask(lambda agentmem: agentmem.default_model())
        load(client, name, model)
        yield Served(client, name)
        return
    with needing_servers():
        background = importlib.import_module("gateway.cli.up.background")
    with background.stack(model, keep=keep) as stack:
        reached, name = replace(client, gateway=stack.address), background.registered_name(model)
        if not stack.ours and not client.as_json:
            note(f"this is the Agentmem that runs already (pid {stack.pid}); whoever started it may stop it")
        try:
            load(reached, name, model)
            yield Served(reached, name, stack.http)
        finally:
            if keep and stack.ours:
                note(f"Agentmem goes on serving at {stack.address}; `kill {stack.pid}` stops it")


def _name(model: str) -> str:
    try:
        return parse(model)[0]
    except ValueError as error:
        raise Mistake(str(error)) from error


def load(client: Client, name: str, given: str) -> None:
    """Load a model if needed. If this key may not, another's load is waited for, and the first turn loads it."""

    async def question(agentmem: AsyncClient) -> None:
        try:
            model = await agentmem.models.get(name)
        except errors.NotFound as error:
            known = [each.name async for each in agentmem.models.list()]
            named = ", ".join(known[:_NAMED]) + (", …" if len(known) > _NAMED else "")
            raise errors.FailedPrecondition(
                f"the gateway at {client.gateway} has no model {name!r}, but {named}; take one of these, or stop it, "
                f"and start it with `agentmem up --model {given}`"
            ) from error
        if model.state == "loaded":
            return
        if not client.as_json and not is_screen(sys.stderr):
            note(f"loading {name}…")
        with LiveLine(sys.stderr) as line:
            try:
                await loaded(agentmem, name, line)
            except errors.PermissionDenied:
                await waited_for(agentmem, name, line)

    client.ask(question)


def wait_for_load(client: Client, name: str) -> None:
    """At a terminal, wait until a model that is being loaded is there."""

    async def question(agentmem: AsyncClient) -> None:
        with LiveLine(sys.stderr) as line:
            await waited_for(agentmem, name, line)

    if is_screen(sys.stderr) and not client.as_json:
        client.ask(question)


def note(text: str) -> None:
    """Write a line beside the conversation."""
    click.secho(printable(text), dim=True, err=True)
