"""`agentmem keys`."""

import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from functools import wraps
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.table import Table

from agentmem import layout
from agentmem.console import FOLD, LINE, Mistake, cluster_options, console, json_option, table, write_json
from agentmem.diagnostics import FileError
from agentmem.errors import AgentmemError
from agentmem.words import printable
from gateway.cli.key_places import InCluster, InFile, Place, add
from gateway.edge import key_file
from gateway.edge.keys import ApiKey, new

_DURATION = re.compile(r"(\d{1,6})(min|h|d)")
_UNITS = {"min": "minutes", "h": "hours", "d": "days"}


def _kept(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of the place, as the parameter `place`, and tell of what is wrong there as a Mistake."""

    @wraps(command)
    def placed(path: Path | None, data: Path, cluster: str, survives: str, schema: str, **given: Any) -> None:
        there = InCluster(cluster, (f"--cluster-survives={survives}", f"--schema={schema}"))
        place = _place(path, data, there)
        try:
            command(place=place, **given)
        except (AgentmemError, FileError) as error:
            raise Mistake(str(error)) from error

    text = "The cluster's PostgreSQL, for keys that all nodes with --cluster-keys know, in the place of a file"
    return _keys_option(_data_option(cluster_options(placed, text, required=False)))


_keys_option = click.option(
    "--keys",
    "path",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file of keys; without it keys.json in the data directory.",
)
_data_option = click.option(
    "--data",
    metavar="PATH",
    default=layout.DATA,
    show_default=True,
    envvar="AGENTMEM_UP_DATA",
    type=click.Path(file_okay=False, path_type=Path),
    help="The data directory.",
)


@click.group()
def keys() -> None:
    """Make, list and revoke API keys, which callers of a gateway send."""


@keys.command()
@click.option("--namespace", required=True, metavar="NAME", help="Whose memory the key opens.")
@click.option("--label", default="", metavar="TEXT", help="What it is for.")
@click.option("--expires", metavar="WHEN", help="30d, 12h, 2027-01-31 or 2027-01-31T12:00:00Z; without it never.")
@click.option("--admin", is_flag=True, help="It may load and unload models.")
@click.option("--max-running", type=click.IntRange(0), metavar="N", help="Requests at once; 0: any number.")
@click.option("--max-per-minute", type=click.IntRange(0), metavar="N", help="Requests in a minute; 0: any number.")
@_kept
@json_option
def create(namespace: str, label: str, expires: str | None, place: Place, as_json: bool, **limits: Any) -> None:
    """Make an API key and write it to standard output, only this once: a hash of it is kept."""
    now = datetime.now(UTC).replace(microsecond=0)
    ends = moment(expires, now) if expires else None
    key, shown = new(namespace, now, label=printable(label), expires=ends, **limits)
    add(place, [key])
    if as_json:
        write_json({"key": str(shown), **as_dict(key, now)})
        return
    click.echo(
        f"key {key.id} of namespace {printable(namespace)}, kept as a hash in {place}; this is shown once:", err=True
    )
    click.echo(str(shown))


@keys.command("list")
@_kept
@json_option
def list_keys(place: Place, as_json: bool) -> None:
    """List the API keys, without their secrets."""
    now, known = datetime.now(UTC), place.read().values()
    if as_json:
        write_json([as_dict(key, now) for key in known])
        return
    console().print(keys_table(known, now))


def keys_table(known: Iterable[ApiKey], now: datetime) -> Table:
    """Return the keys for people; --json has more exact times."""
    names = {name: {**FOLD, "min_width": len(name)} for name in ("namespace", "label")}
    limits = {name: {**FOLD, "justify": "right"} for name in ("at once", "a minute")}

    def row(key: ApiKey) -> list[str]:
        expires = key.expires.astimezone(UTC).strftime("%Y-%m-%d %H:%MZ") if key.expires else "never"
        most = ["" if limit is None else str(limit) for limit in (key.max_running, key.max_per_minute)]
        notes = [note for note, so in (("admin", key.admin), ("expired", key.expired(now))) if so]
        return [key.id, key.namespace, key.label, expires, *most, ", ".join(notes)]

    return table({"id": LINE, **names, "expires": LINE, **limits, "note": FOLD}, map(row, known))


@keys.command()
@click.argument("key_id", metavar="ID")
@_kept
def revoke(key_id: str, place: Place) -> None:
    """Revoke the API key of this id. Gateways refuse it from then on, and end what it has running."""
    if key_id not in place.read():
        raise click.ClickException(f"{place} has no key {printable(key_id)}; `agentmem keys list` lists them")
    place.change(lambda known: known.pop(key_id, None))
    click.echo(f"revoked {key_id}: {place.delay}")


@keys.command("import")
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@_kept
def import_keys(file: Path, place: Place) -> None:
    """Add the API keys of FILE to those of a cluster (--cluster) or of another file.

    All or none: nothing is added if another key has the same id. Existing keys stay, and keys that were revoked
    there since the last import come back. FILE does not change.
    """
    known = key_file.read(file)[0].values()
    added = add(place, known)
    click.echo(f"{added} of {len(known)} keys are new in {place}")


def moment(text: str, now: datetime) -> datetime:
    """Return a time after `now`, from a span, a date or a time, by default in UTC. Raises Mistake."""
    try:
        if length := _DURATION.fullmatch(text):
            found = now + timedelta(**{_UNITS[length[2]]: int(length[1])})
        else:
            found = datetime.fromisoformat(text)
            found = found if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise Mistake(f"--expires: {printable(text)} is no time; write 30d, 12h, 2027-01-31 or …T12:00:00Z") from None
    if found <= now:
        raise Mistake(f"--expires: {printable(text)} is over")
    return found


def as_dict(key: ApiKey, now: datetime) -> dict[str, Any]:
    return {**key.model_dump(mode="json", exclude={"sha256"}), "expired": key.expired(now)}


def _place(path: Path | None, data: Path, cluster: InCluster) -> Place:
    """Return the place; the command line goes before the environment. Raises Mistake for a foreign directory."""
    context = click.get_current_context()
    given = {
        name
        for name in ("path", "data", "cluster")
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    if "cluster" in given and len(given) > 1:
        raise click.UsageError("keys are in a file or in a cluster: leave out --cluster, or --keys and --data")
    if cluster.url and not given - {"cluster"}:
        return cluster
    if path is not None:
        return InFile(path.expanduser())
    try:
        layout.refuse_foreign(layout.data_directory(data))
    except (layout.ForeignDirectory, OSError) as error:
        raise Mistake(f"--data: {error}") from error
    return InFile(layout.key_file(data))
