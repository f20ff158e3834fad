"""What the commands share that are clients of a gateway: the channel, retries, and one clear line for an error."""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import click
import grpc

from agentmem import errors, layout
from agentmem.addresses import parse_address
from agentmem.channels import connect
from agentmem.credentials import ClientTls
from gateway import retries
from gateway.cli.connection import KEY_VARIABLE, connection, connection_options
from gateway.cli.mistakes import Mistake
from gateway.cli.text import printable

PATIENCE = 60.0
"""Seconds that a command waits for a worker that is starting again."""
_SILENT = "no gateway answers"

_T = TypeVar("_T")
_Command = TypeVar("_Command", bound=Callable[..., Any])


def _host_and_port(_: click.Context, __: click.Parameter, value: str) -> str:
    try:
        parse_address(value)
    except ValueError as error:
        raise Mistake(f"--gateway: {error}") from error
    return value


def not_empty(problem: str) -> Callable[[click.Context, click.Parameter, str], str]:
    """A callback that refuses an empty argument, which has this `problem`."""

    def check(_: click.Context, __: click.Parameter, value: str) -> str:
        if not value:
            raise Mistake(problem)
        return value

    return check


agent_argument = click.argument("agent", callback=not_empty("the agent's name must not be empty"))
_address_option = click.option(
    "--gateway",
    metavar="HOST:PORT",
    default=layout.GRPC,
    show_default=True,
    callback=_host_and_port,
    help="The gateway's gRPC address.",
)


def gateway_option(command: _Command) -> _Command:
    """The gateway's address, as the parameter `gateway`; and how to connect to it, which `ask` knows."""
    return _address_option(connection_options(command))


json_option = click.option("--json", "as_json", is_flag=True, help="Write JSON, for machines.")
model_option = click.option("--model", default="", help="The model's name; without it the default model.")


def hand_down(context: click.Context, gateway: str, *, as_json: bool, **further: bool) -> bool:
    """Let what a group is given hold for the command that follows, unless that is given its own; whether none does."""
    assert isinstance(context.command, click.Group)
    given = {"gateway": gateway, "as_json": as_json, **further}
    context.default_map = {name: given for name in context.command.commands}
    return context.invoked_subcommand is None


def ask(gateway: str, question: Callable[[grpc.aio.Channel], Coroutine[Any, Any, _T]]) -> _T:
    """Run `question` on a channel to `gateway`. Raises ClickException with one line for whatever goes wrong."""

    key, tls = connection(gateway)

    async def asked() -> _T:
        async with connect(gateway, key=key, tls=tls) as channel:
            return await question(channel)

    try:
        return asyncio.run(asked())
    except grpc.aio.AioRpcError as error:
        raise click.ClickException(explanation(error, gateway, key=key, tls=tls)) from error
    except errors.AgentmemError as error:
        raise click.ClickException(error.message) from error
    except UnicodeError as error:
        raise click.ClickException("what was given is not well-formed UTF-8") from error


def explanation(error: grpc.aio.AioRpcError, gateway: str, *, key: str, tls: ClientTls | None) -> str:
    """In one line what went wrong at `gateway`, to which `key` and `tls` were shown, and what to do."""
    if errors.is_unreachable(error):
        message = f"no gateway answers at {gateway}; start one with `agentmem up`, or name another with --gateway"
        if tls is None:
            return message + "; if it has TLS, say so with --tls or --ca FILE"
        return message + "; if it does, TLS failed: --ca FILE names who signed its certificate"
    if error.code() is grpc.StatusCode.UNAUTHENTICATED and not key:
        return f"the gateway at {gateway} asks for a key; give one in {KEY_VARIABLE}, or in a file with --key-file"
    return errors.from_rpc(error).message


def tell_of_outage(why: str, *, mid_line: bool = False) -> None:
    """Say on standard error what is waited for; on a new line, if standard output is in the middle of one."""
    click.echo("\n" * mid_line + f"… waiting: {printable(why)}", err=True)


async def retrying(
    attempt: Callable[[], Awaitable[_T]],
    on_outage: Callable[[str], None] = tell_of_outage,
    *,
    gateway_too: bool = False,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> _T:
    """The result of `attempt`, tried again through an outage: UNAVAILABLE for up to PATIENCE seconds.

    Waits as long as the server says, and calls `on_outage` with the reason before the first wait. With `gateway_too` a
    gateway that does not answer is waited for as well. Gives up with the last failure. An attempt that itself went on
    for longer than PATIENCE has found the server well, and what ends it is another outage.
    """

    def wait(error: retries.Failure) -> float | None:
        failure = outage(error, _SILENT)
        silent = isinstance(error, grpc.aio.AioRpcError) and errors.is_unreachable(error)
        return None if failure is None or (silent and not gateway_too) else retries.told_wait(failure)

    def began(error: retries.Failure) -> None:
        failure = outage(error, _SILENT)
        assert failure is not None
        on_outage(failure.message)

    return await retries.patiently(
        attempt, wait, PATIENCE, well_after=PATIENCE, on_outage=began, sleep=sleep, clock=clock
    )


def outage(error: retries.Failure, silent: str) -> errors.Unavailable | None:
    """The failure, if it is one that passes: UNAVAILABLE, or a transport that failed, of which `silent` tells."""
    failure = errors.from_peer(error, silent) if isinstance(error, grpc.aio.AioRpcError) else error
    return failure if isinstance(failure, errors.Unavailable) else None


def write_json(data: object) -> None:
    """One JSON document on one line; letters are escaped where the locale may lack them."""
    click.echo(json.dumps(data, ensure_ascii=sys.stdout.encoding.lower() not in ("utf-8", "utf8")))
