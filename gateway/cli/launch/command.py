"""`agentmem launch CLIENT`."""

import os
import shutil
import ssl
import tempfile
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

import click

from agentmem import layout
from agentmem.addresses import parse_address
from agentmem.console import Mistake, write_json
from agentmem.process.model_sources import DEMO
from agentmem.v1 import model_pb2
from agentmem.validation import MAX_NAME_BYTES
from agentmem.words import printable
from gateway.cli.client import Client, client_options, flag_address, warn_of_clear_text
from gateway.cli.groups import needing_servers
from gateway.cli.http import Door
from gateway.cli.launch.clients import CLIENTS, KEY, NAME, CodingClient, Server
from gateway.cli.launch.gained import gained, last_turn
from gateway.cli.launch.running import environment, signals_passed_on
from gateway.cli.serving import Served, answers, note, serving

_NO_KEY: Final = "unused"
_OTHER: Final = "`agentmem models search` finds others, and --model NAME takes one"


class _Launch(click.Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            own = f"the client's own come after --: agentmem launch CLIENT -- {error.option_name}"
            raise Mistake(f"agentmem launch has no option {error.option_name}; {own}") from error
        except click.MissingParameter as error:
            raise Mistake(f"agentmem launch: name a client, {', '.join(CLIENTS)}") from error


@click.command(cls=_Launch)
@click.argument("client_name", metavar="CLIENT", type=click.Choice(list(CLIENTS)))
@click.argument("arguments", metavar="[-- ARGS]...", nargs=-1, type=click.UNPROCESSED)
@click.option("--model", default="", help="The model's name; without it the default model. As for `agentmem chat`.")
@click.option("--keep", is_flag=True, help="Leave running what this command has started.")
@click.option(
    "--http",
    default="",
    metavar="HOST:PORT",
    help="The gateway's HTTP address (default: what its `agentmem up` has, or port 8080 of its host).",
)
@client_options
def launch(client: Client, client_name: str, arguments: tuple[str, ...], model: str, keep: bool, http: str) -> None:
    """Run a coding agent on this server: claude, codex, opencode, pi or qwen. ARGS are its own.

    Its settings are for this run: variables, arguments and a temporary file, which leave the user's own as they are.
    Its agents are named after the working directory. If no gateway runs at the default address, `agentmem up` is
    started in the background, and stopped when the client ends. At the end standard error has what memory gave.
    """
    coding = CLIENTS[client_name]
    program = shutil.which(coding.program)
    if program is None:
        raise Mistake(f"{coding.title} is not installed: no {coding.program!r} in PATH; `{coding.installation}`")
    if client.tls and client.tls.cert:
        raise Mistake(
            "--client-cert: clients get no certificate from this command; it is for gateways that ask for none"
        )
    try:
        name = directory_name(Path.cwd())
    except FileNotFoundError as error:
        raise Mistake("the working directory is deleted; run this in another") from error
    with _served(client, model, keep=keep) as served:
        found = served.client.ask(lambda agentmem: agentmem.models.get(served.model)).raw
        check(coding, found)
        url = _url(served, http)
        began = served.client.ask(lambda agentmem: last_turn(agentmem, name))
        key = client.key or _NO_KEY
        with signals_passed_on() as run, tempfile.TemporaryDirectory(prefix="agentmem-") as folder:
            server = Server(url, key, served.model, found.context_length, quote(name, safe=""), Path(folder))
            words, variables = _prepared(coding, server, client)
            status = run((program, *words, *arguments), variables)
        _report(served.client, name, began)
    raise click.exceptions.Exit(status)


def directory_name(directory: Path) -> str:
    """Return the name of a directory's conversations, which may lack the end of a long one."""
    name = unicodedata.normalize("NFC", directory.name)
    return name.encode("utf-8", "replace")[:MAX_NAME_BYTES].decode("utf-8", "ignore") or "root"


def check(coding: CodingClient, model: model_pb2.Model) -> None:
    """Raise Mistake for a model that cannot serve a coding client."""
    name = printable(model.model_id)
    if model.state != model_pb2.MODEL_STATE_LOADED:
        raise Mistake(f"{name} is not loaded, and this key may not load it: an admin's does, `agentmem models load`")
    if not model.tool_parser:
        raise Mistake(f"{name} cannot call tools, which {coding.title} needs; {_OTHER}")
    if model.context_length < coding.context:
        has = f"{name} has a context of {model.context_length:,} tokens, and {coding.title} needs {coding.context:,}"
        raise Mistake(
            f"{has}: a longer one by `agentmem up --context-length N`, where model and memory have it; {_OTHER}"
        )


@contextmanager
def _served(client: Client, model: str, *, keep: bool) -> Iterator[Served]:
    """Yield a gateway with the model, by default its default one, loaded. Raises ClickException."""
    if not answers(client):
        model = model or _configured()
        if model.rpartition("=")[2] == DEMO:
            raise Mistake(f"the model {model!r} cannot call tools, which a coding client needs; {_OTHER}")
    elif not model:
        model = client.ask(lambda agentmem: agentmem.default_model())
    with serving(client, model, keep=keep) as served:
        yield served


def _configured() -> str:
    """Return the model that `agentmem up` would serve."""
    with needing_servers():
        from gateway.cli.up.default_model import default_of
        from gateway.cli.up.settings import up_settings
    try:
        return default_of(up_settings({})).model_id
    except ValueError as error:
        raise Mistake(str(error)) from error


def _url(served: Served, given: str) -> str:
    """Return the gateway's HTTP address, where it serves the model. Raises ClickException."""
    if given:
        flag_address("--http", given)
    client = served.client
    address, tls = given or served.http or _http(client.gateway), None
    if client.tls is not None:
        tls = ssl.create_default_context(cadata=client.tls.ca.decode() if client.tls.ca else None)
    warn_of_clear_text(client.key, address, tls=tls is not None)
    listed = Door(address, client.key, tls).ask("/v1/models", {"data"})["data"]
    if served.model not in [each.get("id") for each in listed]:
        raise Mistake(
            f"{address} does not serve {served.model!r}; name the HTTP address of {client.gateway} with --http"
        )
    return f"{'https' if tls else 'http'}://{address}"


def _http(gateway: str) -> str:
    """Return the HTTP address of a gateway: what its `agentmem up` wrote, or the usual port of its host."""
    with suppress(ModuleNotFoundError):  # no services are installed
        from gateway.cli.up.lock import running

        _, holder = running()
        if holder.get("grpc") == gateway:
            return str(holder["http"])
    return str(parse_address(gateway)._replace(port=parse_address(layout.HTTP).port))


def _prepared(coding: CodingClient, server: Server, client: Client) -> tuple[Sequence[str], Mapping[str, str]]:
    """Write the client's files; return its first words and its variables."""
    settings = coding.settings(server)
    files = dict(settings.files)
    variables = {**settings.variables, KEY: server.key, NAME: server.name}
    if client.tls and client.tls.ca:
        for variable in ("NODE_EXTRA_CA_CERTS", "CODEX_CA_CERTIFICATE"):
            file = f"{variable}.pem"
            files[file] = "\n".join([*_users_bundle(variable), client.tls.ca.decode()])
            variables[variable] = str(server.folder / file)
    for file, content in files.items():
        (server.folder / file).write_text(content, encoding="utf-8")
    host = parse_address(server.url.partition("://")[2]).host
    return settings.words, environment(variables, host)


def _users_bundle(variable: str) -> list[str]:
    with suppress(OSError, UnicodeError):  # clients ignore such a file, too
        return [Path(file).read_text(encoding="utf-8")] if (file := os.environ.get(variable)) else []
    return []


def _report(client: Client, name: str, began: int) -> None:
    """Write what memory gave since `began`."""
    try:
        gave = client.ask(lambda agentmem: gained(agentmem, name, began))
    except click.ClickException as error:
        note(f"what memory gave is not known: {error.format_message()}")
        return
    if client.as_json:
        write_json({"name": name, **gave.to_json()})
    else:
        note(f"agents conv-{name}-…, {gave.text()}")
