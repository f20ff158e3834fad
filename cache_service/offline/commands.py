"""`agentmem store check`, `du`, `recover` and `abandon-remote`, also as `agentmem-store`.

Exit status: 0, all is well; 1, findings that are not mended, or losses; 2, it could not be done.
"""

import os
import sqlite3
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import click

from agentmem.commands import Commands
from agentmem.console import Mistake, json_option, write_json
from agentmem.words import printable
from cache_service.offline.check import check
from cache_service.offline.database import alone, find, writing
from cache_service.offline.findings import CannotCheck, Checked
from cache_service.offline.recover import Recovered, recover
from cache_service.offline.states import RecoveredAgent
from cache_service.offline.usage import Usage, usage
from cache_service.tiers import objects

_TEXTS = ("what", "where", "problem", "consequence", "repair")
_directory = click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))


class OfflineGroup(Commands):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except CannotCheck as error:
            raise Mistake(str(error)) from error


@click.group(cls=OfflineGroup, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Check or recover a store's data directory (its --data), show its disk usage, or part it from its object store."""
    os.umask(0o077)


@main.command("check")
@_directory
@click.option("--repair", is_flag=True, help="Mend what can be mended. Ledgers are never changed.")
@json_option
def check_command(directory: Path, repair: bool, as_json: bool) -> None:
    """Verify everything in DIR while no store uses it: database, ledgers, every byte of KV, modes.

    Exit status 0: clean, or all mended; 1: there are findings; 2: DIR cannot be checked.
    """
    tell(check(directory.expanduser(), repair), as_json, "" if repair else "--repair")


@main.command("du")
@_directory
@json_option
def du_command(directory: Path, as_json: bool) -> None:
    """Show the disk usage of DIR by kind and agent, even while a store uses it."""
    found = usage(directory.expanduser())
    if as_json:
        write_json(_with_agents(found))
    else:
        _write_usage(found)


@main.command("recover")
@_directory
@click.argument("new_directory", metavar="NEWDIR", type=click.Path(path_type=Path))
@json_option
def recover_command(directory: Path, new_directory: Path, as_json: bool) -> None:
    """Copy what is readable of DIR, whose database is damaged, into NEWDIR. DIR is not written to.

    Exit status 0: nothing is lost; 1: something is; 2: nothing can be recovered, and NEWDIR is unchanged.
    """
    recovered = recover(directory.expanduser(), new_directory.expanduser())
    if as_json:
        write_json({**_with_agents(recovered), "whole": recovered.is_whole})
    else:
        _write_recovered(recovered, new_directory)
    sys.exit(0 if recovered.is_whole else 1)


@main.command("abandon-remote")
@_directory
def abandon_command(directory: Path) -> None:
    """Give up DIR's objects in the object store, so that its store may take another --remote.

    KV that is only in the object store is computed again. The objects stay: delete them there. Exit status 0: done; 2:
    it cannot be done, and nothing has changed.
    """
    location, objects_left = _abandon(directory.expanduser())
    click.echo(f"{objects_left} objects are given up; delete what is at {location}" if location else "there were none")


def _abandon(root: Path) -> tuple[str, int]:
    directory = find(root)
    try:
        with alone(directory), writing(directory.database) as connection:
            return objects.abandon(connection)
    except (OSError, sqlite3.Error) as error:
        raise CannotCheck(f"cannot change {directory.database}: {error}") from error


def tell(checked: Checked, as_json: bool, mends: str) -> NoReturn:
    """Write what was found, and exit. `mends` is the option that would mend, unless it was given."""
    counts = {"agents": checked.agents} | ({} if checked.published is None else {"files": checked.published})
    if as_json:
        findings = [
            {name: printable(getattr(finding, name)) for name in _TEXTS}
            | {"agents": list(finding.agents), "repairable": finding.mendable, "repaired": finding in checked.mended}
            for finding in checked.findings
        ]
        write_json({"clean": checked.is_clean, **counts, "findings": findings})
    else:
        _write_checked(checked, counts, mends)
    sys.exit(0 if checked.is_clean else 1)


def _write_checked(checked: Checked, counts: Mapping[str, int], mends: str) -> None:
    for finding in checked.findings:
        state = "mended" if finding in checked.mended else "found"
        click.echo(printable(f"{state}: {finding.what}: {finding.where}: {finding.problem}"))
        if finding.agents:
            click.echo(printable(f"    agents: {', '.join(finding.agents)}"))
        click.echo(printable(f"    consequence: {finding.consequence}"))
        click.echo(printable(f"    repair: {finding.repair}"))
    counted = ", ".join(f"{count} {what}" for what, count in counts.items())
    click.echo(f"{counted}: {len(checked.findings)} findings, {len(checked.mended)} mended")
    if mends and not checked.is_clean and any(finding.mendable for finding in checked.findings):
        click.echo(f"{mends} mends what can be mended")


def _with_agents(found: Usage | Recovered) -> dict[str, Any]:
    agents = [{**agent.key._asdict(), **asdict(agent)} for agent in found.agents]
    return {**asdict(found), "agents": [{name: each[name] for name in each if name != "key"} for each in agents]}


def _write_usage(found: Usage) -> None:
    for kind, size in found.totals.items():
        click.echo(f"{size:>15,}  {kind}")
    click.echo(f"{found.unowned:>15,}  of blocks and windows are no agent's at present\n")
    for namespace, size in found.namespaces.items():
        click.echo(f"{size:>15,}  namespace {printable(namespace) or '(none)'}")
    columns = ("kv own", "kv shared", "ledger")
    click.echo("\n" + "  ".join(f"{column:>15}" for column in columns) + "  namespace/agent/model")
    for agent in found.agents:
        sizes = (agent.kv_own, agent.kv_shared, agent.ledger)
        click.echo("  ".join(f"{size:>15,}" for size in sizes) + "  " + printable("/".join(agent.key)))


def _write_recovered(recovered: Recovered, new_directory: Path) -> None:
    for agent in recovered.agents:
        click.echo(printable(f"{agent.state:<8} {'/'.join(agent.key)}: {_fate(agent)}"))
    if recovered.damaged:
        click.echo(f"tables that could not be read to their end: {', '.join(recovered.damaged)}")
    left = sum(agent.state != "gone" for agent in recovered.agents)
    click.echo(f"{left} agents and {recovered.workflow_records} workflow records are in {new_directory}")


def _fate(agent: RecoveredAgent) -> str:
    if agent.had_tokens is None:
        return "its row is lost, and with it what it stood on"
    if agent.state == "gone":
        fate = f"none of its {agent.had_tokens} tokens in {agent.had_turns} turns hold together"
    elif agent.state == "in part":
        fate = f"up to turn {agent.turns} of {agent.had_turns}, {agent.tokens} of {agent.had_tokens} tokens"
    else:
        fate = f"{agent.tokens} tokens in {agent.turns} turns"
    return f"{fate}; lost snapshots: {', '.join(agent.lost_snapshots)}" if agent.lost_snapshots else fate


if __name__ == "__main__":
    main(prog_name="agentmem store")
