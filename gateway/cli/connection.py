"""What a command shows to its gateway, and how it knows it: a key and TLS, from flags, files and environment.

A key is no flag: what stands on a command line is seen by everybody on the machine.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import click
from click.core import ParameterSource

from agentmem.addresses import is_loopback, parse_address
from agentmem.credentials import ClientTls
from gateway.cli.mistakes import Mistake

KEY_VARIABLE: Final = "AGENTMEM_API_KEY"
_META: Final = "agentmem.connection."

_Command = TypeVar("_Command", bound=Callable[..., Any])


class Connection(NamedTuple):
    """How to connect; `key` is empty and `tls` None where nothing was said."""

    key: str = ""
    tls: ClientTls | None = None


def connection_options(command: _Command) -> _Command:
    """The options, which `connection` reads; those of a group hold for its commands, unless they have their own."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def connection(gateway: str) -> Connection:
    """What the command that runs was told of its connection to `gateway`. Raises Mistake."""
    context = click.get_current_context(silent=True)
    told: dict[str, Any] = {} if context is None else context.meta
    files: dict[str, Path | None] = {name: told.get(_META + name) for name in ("ca", "client_cert", "client_key")}
    if (files["client_cert"] is None) != (files["client_key"] is None):
        raise Mistake("--client-cert and --client-key go together")
    key_file: Path | None = told.get(_META + "key_file")
    key = _read("--key-file", key_file).decode("ascii", "replace") if key_file else os.environ.get(KEY_VARIABLE, "")
    key = key.strip()
    if not (key.isascii() and (key.isprintable() or not key)):
        raise Mistake(f"what {'--key-file' if key_file else KEY_VARIABLE} has is no key")
    tls = None
    if told.get(_META + "tls") or any(files.values()):
        ca, cert, own = (_read(f"--{name.replace('_', '-')}", path) if path else None for name, path in files.items())
        tls = ClientTls(ca, cert, own)
    elif key and not is_loopback(parse_address(gateway).host):
        click.echo(f"warning: the key goes to {gateway} in clear text; use --tls or --ca FILE", err=True)
    return Connection(key, tls)


def _read(flag: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Mistake(f"{flag}: {path} cannot be read: {error.strerror}") from error


def _note(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    assert parameter.name is not None
    name = _META + parameter.name
    if context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE:
        context.meta[name] = value
    elif value:
        context.meta.setdefault(name, value)


def _file(flag: str, variable: str | None, text: str) -> Callable[[_Command], _Command]:
    kind = click.Path(dir_okay=False, path_type=Path)
    return click.option(flag, type=kind, metavar="FILE", envvar=variable, expose_value=False, callback=_note, help=text)


_OPTIONS: Final = (
    _file("--key-file", None, f"A file with the key to show; without it {KEY_VARIABLE} of the environment."),
    click.option(
        "--tls", is_flag=True, envvar="AGENTMEM_TLS", expose_value=False, callback=_note, help="The gateway has TLS."
    ),
    _file("--ca", "AGENTMEM_CA", "Who signed the gateway's certificate; PEM. Implies --tls."),
    _file("--client-cert", "AGENTMEM_CLIENT_CERT", "The certificate to show; PEM. Implies --tls."),
    _file("--client-key", "AGENTMEM_CLIENT_KEY", "Its private key; PEM."),
)
