"""`agentmem cluster status`: the nodes, as one gateway knows them."""

import json
import os
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final

import click
from rich.table import Table

from agentmem import layout
from agentmem.words import printable
from gateway.cli.client import flag_address
from gateway.cli.text import FOLD, LINE, console, json_option, table, write_json

_SECONDS: Final = 10.0
_MOST_BYTES: Final = 16 * 1024 * 1024
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
    try:
        key = key_file.read_text(encoding="ascii").strip() if key_file else os.environ.get("AGENTMEM_API_KEY", "")
        context = ssl.create_default_context(cafile=ca) if ca else None
    except (OSError, ValueError) as error:
        raise click.ClickException(f"{key_file or ca}: {error}") from error
    found = _ask(f"{'https' if ca else 'http'}://{address}/v1/cluster", key, context)
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


def _ask(url: str, key: str, context: ssl.SSLContext | None) -> Any:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    handlers = [urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)]
    try:
        request = urllib.request.Request(url, headers=headers)
        with urllib.request.build_opener(*handlers).open(request, timeout=_SECONDS) as answer:
            return json.loads(answer.read(_MOST_BYTES))
    except urllib.error.HTTPError as error:
        with error:
            raise click.ClickException(_message(error.read(_MOST_BYTES)) or f"{url}: {error}") from None
    except (OSError, ValueError) as error:
        raise click.ClickException(f"no gateway answers at {url}: {getattr(error, 'reason', error)}") from None


def _message(page: bytes) -> str:
    try:
        return printable(str(json.loads(page)["error"]["message"]))
    except (ValueError, KeyError, TypeError):
        return ""
