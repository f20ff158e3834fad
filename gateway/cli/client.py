"""What the commands share that are clients of a gateway: their options, the channel, retries, and errors in one line.

A key is no flag: a command line is visible to everybody on the machine.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import reduce, wraps
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import grpc
from click.core import ParameterSource
from google.protobuf.message import Message
from rich.console import ConsoleRenderable

from agentmem import errors, layout, retries
from agentmem.addresses import Address, is_loopback, parse_address
from agentmem.channels import ClientTls, connect
from agentmem.diagnostics import Diagnostic
from gateway.cli.text import Mistake, console, printable, write_json

PATIENCE: Final = 60.0
"""Seconds that a command waits for a worker that is starting again."""

_KEY_VARIABLE: Final = "AGENTMEM_API_KEY"
_META: Final = "agentmem.client."

_T = TypeVar("_T")


@dataclass(frozen=True)
class Client:
    """How a command reaches its gateway, and whether it writes JSON. An empty `key` is not shown."""

    gateway: str = layout.GRPC
    key: str = ""
    tls: ClientTls | None = None
    as_json: bool = False

    def channel(self) -> AbstractAsyncContextManager[grpc.aio.Channel]:
        """Return a channel to the gateway."""
        return connect(self.gateway, key=self.key, tls=self.tls)

    def ask(self, question: Callable[[grpc.aio.Channel], Coroutine[Any, Any, _T]]) -> _T:
        """Run `question` on a channel. Raises ClickException with one line for whatever fails."""

        async def asked() -> _T:
            async with self.channel() as channel:
                return await question(channel)

        try:
            return asyncio.run(asked())
        except grpc.aio.AioRpcError as error:
            raise click.ClickException(self.explain(error)) from error
        except errors.AgentmemError as error:
            raise click.ClickException(error.message) from error
        except UnicodeError as error:
            raise click.ClickException("what was given is not well-formed UTF-8") from error

    def call(self, stub: Callable[[grpc.aio.Channel], Any], rpc: str, request: Message) -> Any:
        """Return the response of an RPC, asked for through outages. Raises as `ask`."""
        return self.ask(lambda channel: retrying(lambda: getattr(stub(channel), rpc)(request)))

    def explain(self, error: grpc.aio.AioRpcError) -> str:
        """Return in one line what failed, and what to do."""
        if errors.is_unreachable(error):
            silent = (
                f"no gateway answers at {self.gateway}; start one with `agentmem up`, or name another with --gateway"
            )
            if self.tls is None:
                return f"{silent}; if it has TLS, say so with --tls or --ca FILE"
            return f"{silent}; if it does, TLS failed: --ca FILE names who signed its certificate"
        if error.code() is grpc.StatusCode.UNAUTHENTICATED and not self.key:
            how = f"give one in {_KEY_VARIABLE}, or in a file with --key-file"
            return f"the gateway at {self.gateway} asks for a key; {how}"
        return errors.from_rpc(error).message

    def show(self, data: object, text: str | ConsoleRenderable) -> None:
        """Write `data` with --json, else `text`, a line or more, or something that the console draws."""
        if self.as_json:
            write_json(data)
        elif isinstance(text, str):
            click.echo(text)
        else:
            console().print(text)


def client_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a gateway's client; the command gets a Client as its parameter `client`."""

    @wraps(command)
    def with_client(*args: Any, **kwargs: Any) -> Any:
        return command(*args, client=_client(click.get_current_context()), **kwargs)

    return group_options(with_client)


def group_options(group: Callable[..., Any]) -> Callable[..., Any]:
    """Add these options to a group: they hold for its commands, unless these are given their own."""
    return reduce(lambda decorated, option: option(decorated), reversed(_OPTIONS), group)


def _note(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    """Keep an option's value in the meta data that a group shares with its commands."""
    assert parameter.name is not None
    if context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE:
        context.meta[_META + parameter.name] = value
    elif value:
        context.meta.setdefault(_META + parameter.name, value)


def _option(*names: str, **settings: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(*names, expose_value=False, callback=_note, **settings)


def _file(flag: str, variable: str | None, text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    kind = click.Path(dir_okay=False, path_type=Path)
    return _option(flag, type=kind, metavar="FILE", envvar=variable, help=text)


_OPTIONS: Final = (
    _option(
        "--gateway", metavar="HOST:PORT", default=layout.GRPC, show_default=True, help="The gateway's gRPC address."
    ),
    _file("--key-file", None, f"A file with the key to show; without it {_KEY_VARIABLE} of the environment."),
    _option("--tls", is_flag=True, envvar="AGENTMEM_TLS", help="The gateway has TLS."),
    _file("--ca", "AGENTMEM_CA", "Who signed the gateway's certificate; PEM. Implies --tls."),
    _file("--client-cert", "AGENTMEM_CLIENT_CERT", "The certificate to show; PEM. Implies --tls."),
    _file("--client-key", "AGENTMEM_CLIENT_KEY", "Its private key; PEM."),
    _option("--json", "as_json", is_flag=True, help="Write JSON, for machines."),
)


def _client(context: click.Context) -> Client:
    """Return what the options say. Raises Mistake."""

    def given(name: str) -> Any:
        return context.meta.get(_META + name)

    gateway: str = given("gateway")
    host = flag_address("--gateway", gateway).host
    if bool(given("client_cert")) != bool(given("client_key")):
        raise Mistake("--client-cert and --client-key go together")
    key_file = given("key_file")
    key = _read("--key-file", key_file).decode("ascii", "replace") if key_file else os.environ.get(_KEY_VARIABLE, "")
    key = key.strip()
    if not (key.isascii() and (key.isprintable() or not key)):
        raise Mistake(f"what {'--key-file' if key_file else _KEY_VARIABLE} has is no key")
    files = {name: given(name) for name in ("ca", "client_cert", "client_key")}
    tls = None
    if given("tls") or any(files.values()):
        tls = ClientTls(*(_read(f"--{name.replace('_', '-')}", path) if path else None for name, path in files.items()))
    elif key and not is_loopback(host):
        click.echo(f"warning: the key goes to {gateway} in clear text; use --tls or --ca FILE", err=True)
    return Client(gateway, key, tls, bool(given("as_json")))


def flag_address(flag: str, text: str) -> Address:
    """Return the address that a flag gives. Raises Mistake."""
    try:
        return parse_address(text)
    except ValueError as error:
        raise Mistake(f"{flag}: {error}") from error


def _read(flag: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Mistake(Diagnostic(flag, f"cannot be read: {error.strerror}").render(path)) from error


def not_empty(problem: str) -> Callable[[click.Context, click.Parameter, str | None], str | None]:
    """Return a callback that refuses an argument or option that is given and empty, with this `problem`."""

    def check(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
        if value == "":
            raise Mistake(problem)
        return value

    return check


agent_argument = click.argument("agent", callback=not_empty("the agent's name must not be empty"))


async def all_pages(call: Callable[[Any], Awaitable[Any]], request: Any, items: str) -> list[Any]:
    """Return the field `items` of all pages of a list RPC, through outages."""
    found: list[Any] = []
    while True:
        page = await retrying(lambda: call(request))
        found += getattr(page, items)
        request.page_token = page.next_page_token
        if not page.next_page_token:
            return found


def report_outage(why: str, *, mid_line: bool = False) -> None:
    """Write to standard error what is waited for; on a new line, if standard output is in the middle of one."""
    click.echo("\n" * mid_line + f"… waiting: {printable(why)}", err=True)


async def retrying(
    attempt: Callable[[], Awaitable[_T]],
    on_outage: Callable[[str], None] = report_outage,
    *,
    gateway_too: bool = False,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> _T:
    """Return the result of `attempt`, tried again through an outage: UNAVAILABLE for up to PATIENCE seconds.

    Waits as long as the server says, and calls `on_outage` with the reason before the first wait. With `gateway_too` a
    gateway that does not answer is waited for as well. Gives up with the last failure. An attempt that itself went on
    for longer than PATIENCE has found the server well, and what ends it is another outage.
    """

    def wait(error: retries.Failure) -> float | None:
        failure = outage(error)
        silent = isinstance(error, grpc.aio.AioRpcError) and errors.is_unreachable(error)
        return None if failure is None or (silent and not gateway_too) else retries.retry_delay(failure)

    def began(error: retries.Failure) -> None:
        if failure := outage(error):
            on_outage(failure.message)

    return await retries.retry(attempt, wait, PATIENCE, well_after=PATIENCE, on_outage=began, sleep=sleep, clock=clock)


def outage(error: retries.Failure, silent: str = "no gateway answers") -> errors.Unavailable | None:
    """Return the failure if it passes: UNAVAILABLE, or a transport that failed, for which `silent` is the message."""
    failure = errors.from_peer(error, silent) if isinstance(error, grpc.aio.AioRpcError) else error
    return failure if isinstance(failure, errors.Unavailable) else None
