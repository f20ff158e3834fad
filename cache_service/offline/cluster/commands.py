"""The commands: `agentmem cluster import`, `export`, `check` and `forget`, and what `agentmem keys` has done here.

Exit status: 0, all is well; 1, `check` has findings that were not mended; 2, it could not be done.
"""

import importlib.util
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click
from click.core import ParameterSource

from agentmem.words import printable
from cache_service.offline.commands import finding_dict, write_findings
from cache_service.offline.findings import CannotCheck

_T = TypeVar("_T")
_SECONDS = 600.0
"""How long one statement may take, and the work of this process between two of them: there are more rows than a node
reads at once.
"""
_directory = click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
_json = click.option("--json", "as_json", is_flag=True, help="Write JSON, for machines.")


def _without_password(context: click.Context, option: click.Parameter, url: str) -> str:
    """Refuse a password on the command line, where all users of the machine see it."""
    is_seen = context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE
    if is_seen and (urlsplit(url).password or "password" in url):
        raise click.UsageError("all users see a password on the command line: set AGENTMEM_UP_CLUSTER instead")
    return url


def _server(command: Callable[..., None]) -> Callable[..., None]:
    """The options that say where the cluster's ledger is."""
    survives = click.Choice(["server", "crash", "nothing"])
    for option in (
        click.option("--schema", default="agentmem", hidden=True),
        click.option(
            "--cluster-survives",
            "survives",
            type=survives,
            envvar="AGENTMEM_UP_CLUSTER_SURVIVES",
            default="server",
            show_default=True,
            help="What a commit must survive, as for `agentmem up`.",
        ),
        click.option(
            "--cluster",
            metavar="URL",
            envvar="AGENTMEM_UP_CLUSTER",
            required=True,
            callback=_without_password,
            help="The cluster's PostgreSQL; one with a password belongs into AGENTMEM_UP_CLUSTER.",
        ),
    ):
        command = option(command)
    return command


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Move a single machine's ledgers into a cluster, or back, check a cluster's, and forget a node."""
    os.umask(0o077)


@main.command("import")
@_directory
@_server
@click.option("--node", default="", envvar="AGENTMEM_UP_NODE", help="Whose --data DIR will be: its agents go there.")
@_json
def import_command(directory: Path, cluster: str, survives: str, schema: str, node: str, as_json: bool) -> None:
    """Move the ledgers of DIR, whose store is stopped, into a cluster. DIR is then the --data of a node.

    Uids, versions and snapshots stay. Nothing is deleted: DIR/store.db gets another name. Where the cluster has one of
    the agents or runs already, nothing is written.
    """

    def work() -> Any:
        from cache_service.offline.cluster.importing import bring

        return bring(directory.expanduser(), _settings(cluster, survives, schema, node))

    done = _done(work)
    if as_json:
        click.echo(json.dumps(asdict(done), indent=2, default=str))
    elif done.was_done:
        click.echo(f"{directory} was imported before; its ledgers were {done.kept}")
    else:
        click.echo(_counts(done.rows))
        if done.objects_left:
            click.echo(
                f"{done.objects_left} objects are left at {done.location}, for the cluster's object store is another:"
                " what is there only is computed again; delete them there"
            )
        click.echo(f"start a node with --data {directory}; the ledgers that were there are {done.kept}")


@main.command("export")
@_directory
@_server
@click.option("--namespace", metavar="NAME", help="Only this namespace's.")
@_json
def export_command(
    directory: Path, cluster: str, survives: str, schema: str, namespace: str | None, as_json: bool
) -> None:
    """Copy the ledgers of a cluster into DIR, a new directory, on which a single machine can start.

    The cluster stays as it is. Files of KV are not copied: they are computed again.
    """

    def work() -> Any:
        from cache_service.offline.cluster.exporting import take

        return take(directory.expanduser(), _settings(cluster, survives, schema), namespace)

    done = _done(work)
    if as_json:
        click.echo(json.dumps(asdict(done), indent=2))
    else:
        click.echo(f"{_counts(done.rows)}\nstart a store with --data {directory}; KV is computed again")


@main.command("check")
@_server
@click.option("--fix", is_flag=True, help="Count namespaces' bytes anew. Nothing else is changed.")
@_json
def check_command(cluster: str, survives: str, schema: str, fix: bool, as_json: bool) -> None:
    """Verify the ledgers of a cluster, while nodes may serve.

    Exit status 0: clean, or all mended; 1: there are findings; 2: it cannot be checked.
    """

    def work() -> Any:
        from cache_service.offline.cluster.checking import check

        return check(_settings(cluster, survives, schema), fix)

    checked = _done(work)
    if as_json:
        findings = [finding_dict(each, each in checked.mended) for each in checked.findings]
        click.echo(json.dumps({"clean": checked.is_clean, "agents": checked.agents, "findings": findings}, indent=2))
    else:
        write_findings(checked.findings, checked.mended)
        left = len(checked.findings) - len(checked.mended)
        click.echo(f"{checked.agents} agents: {len(checked.findings)} findings, {len(checked.mended)} mended")
        if left and not fix and any(finding.mend for finding in checked.findings):
            click.echo("--fix mends what can be mended")
    sys.exit(0 if checked.is_clean else 1)


@main.command("forget")
@click.argument("name", metavar="NAME")
@_server
def forget_command(name: str, cluster: str, survives: str, schema: str) -> None:
    """Take a node that is gone, and will not come back, out of the list at once; by itself that happens in an hour.

    Until then it is listed as gone, and nothing that only its version needs is taken out of the tables. A node that is
    there is not forgotten. One that was, and comes back, joins as a new one.
    """

    _done(lambda: forget(_settings(cluster, survives, schema), name))
    click.echo(f"node {printable(name)} is forgotten; erase its disk: it has files of KV")


def forget(settings: Any, name: str) -> None:
    """Forget a node; `settings` are the server's. Raises CannotCheck where the node is there, or is not known."""
    from cache_service.cluster import nodes
    from cache_service.offline.cluster.server import opened

    with opened(settings) as postgres:
        try:
            known = postgres.write_blocking(nodes.forget, name)
        except nodes.StillThere as error:
            raise CannotCheck(str(error)) from error
    if not known:
        raise CannotCheck(f"the cluster knows no node {name}; `agentmem cluster status` lists them")


@main.group("keys", hidden=True)
def keys_group() -> None:
    """Keys of callers, for `agentmem keys`, which speaks to people."""


@keys_group.command("add")
@_server
def add_keys_command(cluster: str, survives: str, schema: str) -> None:
    """Add the keys of the file that comes on standard input; writes how many were new."""

    def work() -> Any:
        from cache_service.offline.cluster.keys import add

        return add(_settings(cluster, survives, schema), sys.stdin.read())

    click.echo(_done(work))


@keys_group.command("list")
@_server
def list_keys_command(cluster: str, survives: str, schema: str) -> None:
    """Write all keys, as a file has them."""

    def work() -> Any:
        from cache_service.offline.cluster.keys import listed

        return listed(_settings(cluster, survives, schema))

    click.echo(_done(work))


@keys_group.command("revoke")
@click.argument("key_id", metavar="ID")
@_server
def revoke_key_command(key_id: str, cluster: str, survives: str, schema: str) -> None:
    """Delete a key; writes 1, or 0 where there was none."""

    def work() -> Any:
        from cache_service.offline.cluster.keys import revoke

        return revoke(_settings(cluster, survives, schema), key_id)

    click.echo(int(_done(work)))


def _settings(cluster: str, survives: str, schema: str, node: str = "") -> Any:
    from cache_service.ledger.postgres.settings import Settings, Survives

    times = {"statement_seconds": _SECONDS, "idle_seconds": _SECONDS}
    return Settings(cluster, schema, node, Survives(survives), writers=1, readers=1, **times)


def _done(work: Callable[[], _T]) -> _T:
    if importlib.util.find_spec("psycopg") is None:
        click.echo("agentmem cluster: PostgreSQL's client is not there: pip install 'agentmem[cluster]'", err=True)
        sys.exit(2)
    try:
        return work()
    except CannotCheck as error:
        click.echo(printable(f"agentmem cluster: {error}"), err=True)
        sys.exit(2)


def _counts(rows: dict[str, int]) -> str:
    return ", ".join(f"{count} {table.replace('_', ' ')}" for table, count in rows.items())


if __name__ == "__main__":
    main(prog_name="agentmem cluster")
