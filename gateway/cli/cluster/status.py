"""`agentmem cluster status`: the nodes, as one gateway knows them."""

import json
import ssl
import urllib.error
import urllib.request
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final

import click
from rich.table import Table

from agentmem import layout
from agentmem.console import FOLD, LINE, Mistake, console, json_option, table, write_json
from agentmem.words import printable
from gateway.cli.client import asks_for_key, flag_address, given_key, warn_of_clear_text

_SECONDS: Final = 10.0
_MOST_BYTES: Final = 16 * 1024 * 1024
_FIELDS: Final = frozenset({"cluster_id", "node", "nodes"})
_FILE: Final = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.option("--http", "address", metavar="HOST:PORT", default=layout.HTTP, show_default=True, help="Its HTTP door.")
@click.option("--ca", metavar="FILE", type=_FILE, help="Who signed its certificate; PEM. Implies TLS.")
@click.option("--key-file", metavar="FILE", type=_FILE, help="A file with an admin's key.")
@json_option
def status(address: str, ca: Path | None, key_file: Path | None, as_json: bool) -> None:
    """List the nodes of the cluster, as the gateway at this address knows them.

    Where it asks for keys, an admin's is needed: in AGENTMEM_API_KEY, or in a file.
    """
    flag_address("--http", address)
    key = given_key(key_file)
    try:
        context = ssl.create_default_context(cafile=ca) if ca else None
    except (OSError, ValueError) as error:
        raise Mistake(f"--ca {ca}: {error}") from error
    warn_of_clear_text(key, address, "--ca FILE", tls=ca is not None)
    found = _ask(address, key, context)
    if as_json:
        write_json(found)
        return
    click.echo(f"cluster {printable(found['cluster_id'])}, asked at node {printable(found['node'])}")
    console().print(nodes_table(found["nodes"]))


def nodes_table(nodes: list[dict[str, Any]]) -> Table:
    """Return the nodes for people."""

    def row(node: dict[str, Any]) -> list[str]:
        models = ", ".join(f"{each['model_id']}{'' if each['loaded'] else ' (not loaded)'}" for each in node["models"])
        return [node["name"], node["address"], state(node), str(node["load"]), models, node["version"]]

    columns = {"node": FOLD, "address": FOLD, "state": LINE, "turns": {**LINE, "justify": "right"}, "models": FOLD}
    return table({**columns, "version": LINE}, map(row, nodes))


def state(node: dict[str, Any]) -> str:
    """Return in one word how a node is."""
    if not node["expires_in"]:
        return "gone"
    if node["draining"]:
        return "draining"
    return "ready" if node["ready"] else "not ready"


def _ask(address: str, key: str, context: ssl.SSLContext | None) -> dict[str, Any]:
    """Return what the door answers. Raises ClickException."""
    url = f"{'https' if context else 'http'}://{address}/v1/cluster"
    headers = {"authorization": f"Bearer {key}"} if key else {}
    handlers = [urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)]
    try:
        request = urllib.request.Request(url, headers=headers)
        with urllib.request.build_opener(*handlers).open(request, timeout=_SECONDS) as answer:
            found = json.loads(answer.read(_MOST_BYTES))
        if isinstance(found, dict) and found.keys() >= _FIELDS:
            return found
    except urllib.error.HTTPError as error:
        with error:
            if error.code == HTTPStatus.UNAUTHORIZED and not key:
                raise click.ClickException(asks_for_key(address)) from None
            raise click.ClickException(_message(error.read(_MOST_BYTES)) or f"{url}: {error}") from None
    except OSError as error:
        clear = "" if context else "; if it has TLS, name who signed its certificate with --ca FILE"
        raise click.ClickException(f"no gateway answers at {url}: {getattr(error, 'reason', error)}{clear}") from None
    except (HTTPException, ValueError):
        pass
    raise click.ClickException(f"what {url} answers is no list of nodes; name the gateway's HTTP door with --http")


def _message(page: bytes) -> str:
    try:
        return printable(str(json.loads(page)["error"]["message"]))
    except (ValueError, KeyError, TypeError):
        return ""
