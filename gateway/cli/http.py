"""Requests of commands to a gateway's HTTP API, and their options."""

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Set
from dataclasses import dataclass
from functools import reduce, wraps
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final

import click

from agentmem import layout
from agentmem.console import Mistake
from agentmem.words import printable
from gateway.cli.client import CONNECTION, asks_for_key, flag_address, given_key, warn_of_clear_text

_SECONDS: Final = 10.0
_MOST_BYTES: Final = 16 * 1024 * 1024


@dataclass(frozen=True)
class Door:
    address: str
    key: str = ""
    tls: ssl.SSLContext | None = None

    def ask(self, path: str, fields: Set[str]) -> dict[str, Any]:
        """Return the object that GET answers, with these fields. Raises ClickException."""
        url = f"{'https' if self.tls else 'http'}://{self.address}{path}"
        headers = {"authorization": f"Bearer {self.key}"} if self.key else {}
        handlers = [urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=self.tls)]
        try:
            request = urllib.request.Request(url, headers=headers)
            with urllib.request.build_opener(*handlers).open(request, timeout=_SECONDS) as answer:
                found = json.loads(answer.read(_MOST_BYTES))
            if isinstance(found, dict) and found.keys() >= fields:
                return found
        except urllib.error.HTTPError as error:
            with error:
                if error.code == HTTPStatus.UNAUTHORIZED and not self.key:
                    raise click.ClickException(asks_for_key(self.address)) from None
                raise click.ClickException(_message(error.read(_MOST_BYTES)) or f"{url}: {error}") from None
        except OSError as error:
            why = f"no gateway answers at {url}: {getattr(error, 'reason', error)}; start one with `agentmem up`, name"
            why = f"{why} its HTTP door with --http, or see what `agentmem doctor` says"
            clear = "" if self.tls else "; if it has TLS, say so with --tls or --ca FILE"
            raise click.ClickException(f"{why}{clear}") from None
        except (HTTPException, ValueError):
            pass
        raise click.ClickException(f"{url} answers something else; name the gateway's HTTP door with --http")


def http_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of HTTP and --json, as parameters `door` and `as_json`."""

    @wraps(command)
    def with_door(http: str, key_file: Path | None, tls: bool, ca: Path | None, **options: Any) -> Any:
        certificate, private = options.pop("client_cert"), options.pop("client_key")
        flag_address("--http", http)
        if bool(certificate) != bool(private):
            raise Mistake("--client-cert and --client-key go together")
        context = None
        if tls or ca or certificate:
            try:
                context = ssl.create_default_context(cafile=ca)
                if certificate:
                    context.load_cert_chain(certificate, private)
            except (OSError, ValueError) as error:
                raise Mistake(f"--ca, --client-cert or --client-key: {error}") from error
        key = given_key(key_file)
        warn_of_clear_text(key, http, tls=context is not None)
        return command(door=Door(http, key, context), **options)

    return reduce(lambda decorated, option: option(decorated), reversed((_HTTP, *CONNECTION)), with_door)


def _message(page: bytes) -> str:
    try:
        return printable(str(json.loads(page)["error"]["message"]))
    except (ValueError, KeyError, TypeError):
        return ""


_HTTP: Final = click.option(
    "--http", metavar="HOST:PORT", default=layout.HTTP, show_default=True, help="The gateway's HTTP door."
)
