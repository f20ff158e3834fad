"""`agentmem cluster import`, `export`, `check` and `forget`, and the database's part of `agentmem keys`.

Exit status: 0, all is well; 1, findings are left; 2, it could not be done.
"""

import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import wraps
from pathlib import Path
from typing import Any

import click

from agentmem.console import cluster_options, json_option, write_json
from agentmem.distribution import install
from agentmem.words import printable
from cache_service.offline.commands import OfflineGroup, tell
from cache_service.offline.findings import CannotCheck

_SECONDS = 600.0
"""For a statement, and the work between two: there are more rows than a node reads at once."""
_directory = click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))


def _server(command: Callable[..., None]) -> Callable[..., None]:
    @wraps(command)
    def with_server(*, cluster: str, survives: Any, schema: str, **given: Any) -> None:
        if importlib.util.find_spec("psycopg") is None:
            raise CannotCheck(f"PostgreSQL's client is not there: {install('cluster')}")
        from cache_service.cluster.postgres.settings import Settings

        times = {"statement_seconds": _SECONDS, "idle_seconds": _SECONDS}
        server = Settings(cluster, schema, "", survives, writers=1, readers=1, **times)
        command(server=server, **given)

    return cluster_options(with_server, "The cluster's PostgreSQL", required=True)


@click.group(cls=OfflineGroup, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Move a single machine's ledgers into a cluster, or back, check a cluster's, and forget a node."""
    os.umask(0o077)


@main.command("import")
@_directory
@_server
@click.option("--node", default="", envvar="AGENTMEM_UP_NODE", help="Whose --data DIR will be: its agents go there.")
@json_option
def import_command(directory: Path, server: Any, node: str, as_json: bool) -> None:
    """Move the ledgers of DIR, whose store is stopped, into a cluster. DIR is then the --data of a node.

    Uids, versions and snapshots stay. Nothing is deleted: DIR/store.db gets another name. Where the cluster has one of
    the agents or runs already, nothing is written.
    """
    from cache_service.cluster.offline.importing import bring

    done = bring(directory.expanduser(), replace(server, node=node))
    if as_json:
        write_json({**asdict(done), "kept": str(done.kept)})
    elif done.was_done:
        click.echo(f"{directory} was imported before; its ledgers were {done.kept}")
    else:
        click.echo(_counts(done.rows))
        if done.objects_left:
            click.echo(
                f"{done.objects_left} objects are left at {done.location}: KV that is there only is computed again;"
                " delete them there"
            )
        click.echo(f"start a node with --data {directory}; the ledgers that were there are {done.kept}")


@main.command("export")
@_directory
@_server
@click.option("--namespace", metavar="NAME", help="Only this namespace's.")
@json_option
def export_command(directory: Path, server: Any, namespace: str | None, as_json: bool) -> None:
    """Copy the ledgers of a cluster into DIR, a new directory, on which a single machine can start.

    The cluster stays as it is. Files of KV are not copied: they are computed again.
    """
    from cache_service.cluster.offline.exporting import take

    rows = take(directory.expanduser(), server, namespace)
    if as_json:
        write_json({"rows": rows})
    else:
        click.echo(f"{_counts(rows)}\nstart a store with --data {directory}; KV is computed again")


@main.command("check")
@_server
@click.option("--fix", is_flag=True, help="Count namespaces' bytes anew. Nothing else is changed.")
@json_option
def check_command(server: Any, fix: bool, as_json: bool) -> None:
    """Verify the ledgers of a cluster, while nodes may serve.

    Exit status 0: clean, or all mended; 1: there are findings; 2: it cannot be checked.
    """
    from cache_service.cluster.offline.checking import check

    tell(check(server, fix), as_json, "" if fix else "--fix")


@main.command("forget")
@click.argument("name", metavar="NAME")
@_server
def forget_command(name: str, server: Any) -> None:
    """Take a node that is gone, and will not come back, out of the list at once; by itself that happens in an hour.

    A node that is there is not forgotten. One that was, and comes back, joins as a new one.
    """
    from cache_service.cluster import nodes
    from cache_service.cluster.offline.server import opened

    with opened(server) as postgres:
        try:
            known = postgres.write_blocking(nodes.forget, name)
        except nodes.StillThere as error:
            raise CannotCheck(str(error)) from error
    if not known:
        raise CannotCheck(f"the cluster knows no node {name}; `agentmem cluster status` lists them")
    click.echo(f"node {printable(name)} is forgotten; erase its disk: it has files of KV")


@main.group("keys", hidden=True)
def keys_group() -> None:
    """The keys of callers, for `agentmem keys`."""


@keys_group.command("get")
@_server
def get_keys_command(server: Any) -> None:
    """Write their version in a line of its own, then their text."""
    from cache_service.cluster import keys
    from cache_service.cluster.offline.server import opened

    with opened(server) as postgres:
        version, text = postgres.read_blocking(keys.get)
    click.echo(version)
    click.echo(text, nl=False)


@keys_group.command("put")
@click.argument("version")
@_server
def put_keys_command(version: str, server: Any) -> None:
    """Replace them by standard input; writes 1, or 0 if they have another version."""
    from cache_service.cluster import keys
    from cache_service.cluster.offline.server import opened

    with opened(server) as postgres:
        click.echo(int(postgres.write_blocking(keys.put, sys.stdin.buffer.read(), version)))


def _counts(rows: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {table.replace('_', ' ')}" for table, count in rows.items())


if __name__ == "__main__":
    main(prog_name="agentmem cluster")
