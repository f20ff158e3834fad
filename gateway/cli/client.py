"""A gateway's client, its options and errors. A key is no flag: all users see command lines."""

import asyncio
import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import reduce, wraps
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from rich.console import ConsoleRenderable

from agentmem import AsyncClient, GatewayUnreachable, errors, layout
from agentmem.addresses import Address, is_loopback, parse_address
from agentmem.channels import ClientTls
from agentmem.client.connection import ADDRESS, KEY
from agentmem.console import Mistake, console, json_option, write_json
from agentmem.diagnostics import Diagnostic
from agentmem.words import printable

_T = TypeVar("_T")


@dataclass(frozen=True)
class Client:
    """A command's gateway, and whether to write JSON."""

    gateway: str = layout.GRPC
    key: str = ""
    tls: ClientTls | None = None
    as_json: bool = False

    def ask(
        self,
        question: Callable[[AsyncClient], Coroutine[Any, Any, _T]],
        on_outage: Callable[[str], None] | None = None,
    ) -> _T:
        """Run `question` with a client. Raises ClickException."""

        async def asked() -> _T:
            tls = self.tls or False
            async with AsyncClient(self.gateway, key=self.key, tls=tls, on_outage=on_outage or report_outage) as client:
                return await question(client)

        try:
            return asyncio.run(asked())
        except errors.AgentmemError as error:
            raise click.ClickException(self.explain(error)) from error
        except UnicodeError as error:
            raise click.ClickException("what was given is not well-formed UTF-8") from error

    def explain(self, error: errors.AgentmemError) -> str:
        if isinstance(error, GatewayUnreachable):
            silent = (
                f"no gateway answers at {self.gateway}; start one with `agentmem up`, or name another with --gateway"
            )
            if self.tls is None:
                return f"{silent}; if it has TLS, say so with --tls or --ca FILE"
            return f"{silent}; if it does, TLS failed: --ca FILE names who signed its certificate"
        if isinstance(error, errors.Unauthenticated) and not self.key:
            return asks_for_key(self.gateway)
        return error.message

    def show(self, data: object, text: str | ConsoleRenderable) -> None:
        if self.as_json:
            write_json(data)
        elif isinstance(text, str):
            click.echo(text)
        else:
            console().print(text)


def client_options(command: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(command)
    def with_client(
        *,
        gateway: str,
        key_file: Path | None,
        tls: bool,
        ca: Path | None,
        client_cert: Path | None,
        client_key: Path | None,
        as_json: bool,
        **given: Any,
    ) -> Any:
        flag_address("--gateway", gateway)
        if bool(client_cert) != bool(client_key):
            raise Mistake("--client-cert and --client-key go together")
        files = {"--ca": ca, "--client-cert": client_cert, "--client-key": client_key}
        read = [_read(flag, path) if path else None for flag, path in files.items()]
        client = Client(gateway, given_key(key_file), ClientTls(*read) if tls or any(read) else None, as_json)
        warn_of_clear_text(client.key, gateway, tls=client.tls is not None)
        return command(client=client, **given)

    return reduce(lambda decorated, option: option(decorated), reversed((_GATEWAY, *CONNECTION)), with_client)


def _file(flag: str, variable: str | None, text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    kind = click.Path(dir_okay=False, path_type=Path)
    return click.option(flag, type=kind, metavar="FILE", envvar=variable, help=text)


CONNECTION: Final = (
    _file("--key-file", None, f"A file with the API key; without it {KEY} of the environment."),
    click.option("--tls", is_flag=True, envvar="AGENTMEM_TLS", help="The gateway has TLS."),
    _file("--ca", "AGENTMEM_CA", "Who signed the gateway's certificate; PEM. Implies --tls."),
    _file("--client-cert", "AGENTMEM_CLIENT_CERT", "The certificate to show; PEM. Implies --tls."),
    _file("--client-key", "AGENTMEM_CLIENT_KEY", "Its private key; PEM."),
    json_option,
)
"""Options of any connection."""

_GATEWAY: Final = click.option(
    "--gateway",
    metavar="HOST:PORT",
    envvar=ADDRESS,
    default=layout.GRPC,
    show_default=True,
    help="The gateway's gRPC address.",
)


def given_key(file: Path | None) -> str:
    """Return the key in a file or the environment, or "". Raises Mistake without the key."""
    key = _read("--key-file", file).decode("ascii", "replace") if file else os.environ.get(KEY, "")
    key = key.strip()
    if not (key.isascii() and (key.isprintable() or not key)):
        raise Mistake(f"what {'--key-file' if file else KEY} has is no API key")
    return key


def asks_for_key(address: str) -> str:
    return f"the gateway at {address} asks for an API key; give one in {KEY}, or in a file with --key-file"


def warn_of_clear_text(key: str, address: str, *, tls: bool) -> None:
    """Warn if a key goes to another machine in clear text."""
    if key and not tls and not is_loopback(parse_address(address).host):
        click.echo(f"warning: the key goes to {address} in clear text; use --tls or --ca FILE", err=True)


def flag_address(flag: str, text: str) -> Address:
    try:
        return parse_address(text)
    except ValueError as error:
        raise Mistake(f"{flag}: {error}") from error


def _read(flag: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Mistake(Diagnostic(flag, f"cannot be read: {error.strerror}").render(path)) from error


class NotEmpty(click.types.StringParamType):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value == "":
            raise Mistake(f"{param.get_error_hint(ctx) if param else 'a name'} must not be empty")
        return str(super().convert(value, param, ctx))


NOT_EMPTY = NotEmpty()
agent_argument = click.argument("agent", type=NOT_EMPTY)


def report_outage(why: str, *, mid_line: bool = False) -> None:
    click.echo("\n" * mid_line + f"… waiting: {printable(why)}", err=True)
