from pathlib import Path

import click

from agentmem.console import Mistake
from gateway.cli.groups import program
from gateway.cluster.cli.status import status

_LEDGERS = {
    "import": "Move a stopped single machine's ledgers into a cluster (agentmem cluster import --help).",
    "export": "Copy a cluster's ledgers into a new directory (agentmem cluster export --help).",
    "check": "Verify a cluster's ledgers (agentmem cluster check --help).",
    "forget": "Take a node that is gone out of the list (agentmem cluster forget --help).",
}
_MODULE = "cache_service.cluster.offline.commands"


@click.group(
    commands=[
        status,
        *(program(name, text, _MODULE, name, needs=("pydantic_settings",)) for name, text in _LEDGERS.items()),
    ]
)
def cluster() -> None:
    """Make certificates for the nodes of a cluster, list or forget nodes, and move ledgers in, out, or check them."""


@cluster.command()
@click.argument("directory", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.argument("hosts", metavar="HOST...", nargs=-1, required=True)
@click.option(
    "--days",
    type=click.IntRange(1, 3650),
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
        raise click.ClickException("certificates need cryptography: pip install 'agentmem[cluster]'") from None
    wanted = [check_host(host) for host in dict.fromkeys(hosts)]
    try:
        by = authority(directory)
        for host in wanted:
            click.echo(str(issue(by, directory, host, days)))
    except OSError as error:
        raise Mistake(f"{error.filename}: {error.strerror}") from error
