"""`agentmem cluster status`: the nodes, as one gateway knows them."""

from typing import Any, Final

import click
from rich.table import Table

from agentmem.console import FOLD, LINE, console, table, write_json
from agentmem.words import printable
from gateway.cli.http import Door, http_options

_FIELDS: Final = frozenset({"cluster_id", "node", "nodes"})


@click.command()
@http_options
def status(door: Door, as_json: bool) -> None:
    """List the nodes of the cluster, as the gateway at this address knows them.

    Where it asks for keys, an admin's is needed: in AGENTMEM_API_KEY, or in a file.
    """
    found = door.ask("/v1/cluster", _FIELDS)
    if as_json:
        write_json(found)
        return
    click.echo(f"cluster {printable(found['cluster_id'])}, asked at node {printable(found['node'])}")
    console().print(nodes_table(found["nodes"]))


def nodes_table(nodes: list[dict[str, Any]]) -> Table:
    def row(node: dict[str, Any]) -> list[str]:
        models = ", ".join(f"{each['model_id']}{'' if each['loaded'] else ' (not loaded)'}" for each in node["models"])
        return [node["name"], node["address"], state(node), str(node["load"]), models, node["version"]]

    columns = {"node": FOLD, "address": FOLD, "state": LINE, "turns": {**LINE, "justify": "right"}, "models": FOLD}
    return table({**columns, "version": LINE}, map(row, nodes))


def state(node: dict[str, Any]) -> str:
    if not node["expires_in"]:
        return "gone"
    if node["draining"]:
        return "draining"
    return "ready" if node["ready"] else "not ready"
