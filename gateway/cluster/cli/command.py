from pathlib import Path
from typing import Any, Final

import click
from rich.table import Table

from agentmem.console import FOLD, LINE, Mistake, console, table, write_json
from agentmem.distribution import install
from agentmem.words import printable
from gateway.cli.groups import program
from gateway.cli.http import Door, http_options

_LEDGERS = {
    "import": "Move a stopped single machine's ledgers into a cluster (agentmem cluster import --help).",
    "export": "Copy a cluster's ledgers into a new directory (agentmem cluster export --help).",
    "check": "Verify a cluster's ledgers (agentmem cluster check --help).",
    "forget": "Take a node that is gone out of the list (agentmem cluster forget --help).",
}
_MODULE = "cache_service.cluster.offline.commands"
_FIELDS: Final = frozenset({"cluster_id", "node", "nodes"})


@click.group(
    commands=[program(name, text, _MODULE, name, needs=("pydantic_settings",)) for name, text in _LEDGERS.items()]
)
def cluster() -> None:
    """Make certificates for the nodes of a cluster, list or forget nodes, and move ledgers in, out, or check them."""


@cluster.command()
@click.argument("directory", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.argument("hosts", metavar="HOST...", nargs=-1, required=True)
@click.option(
    "--days",
    type=click.IntRange(1, 3650),
    metavar="N",
    default=825,
    show_default=True,
    help="How long certificates are valid.",
)
def certificates(directory: Path, hosts: tuple[str, ...], days: int) -> None:
    """Make what nodes need as --cluster-tls: DIR/HOST for each HOST, its name or address as others reach it.

    The certificate authority is in DIR: it is made the first time, and signs for more hosts later. Copy DIR/HOST to its
    node, and keep DIR/ca-key.pem to yourself: whoever has it can join the cluster.
    """
    try:
        from gateway.cluster.cli.certificates import authority, check_host, issue
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("cryptography"):
            raise
        raise click.ClickException(f"certificates need cryptography: {install('cluster')}") from None
    wanted = [check_host(host) for host in dict.fromkeys(hosts)]
    try:
        by = authority(directory)
        for host in wanted:
            click.echo(str(issue(by, directory, host, days)))
    except OSError as error:
        raise Mistake(f"{error.filename}: {error.strerror}") from error


@cluster.command()
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
