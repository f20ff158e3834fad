"""`agentmem keys`: who may call. A gateway that was started with the file sees changes at once."""

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from agentmem import layout
from agentmem.diagnostics import FileError
from agentmem.errors import AgentmemError
from gateway.cli.text import FOLD, LINE, Mistake, console, json_option, printable, table, write_json
from gateway.edge import key_file
from gateway.edge.keys import Key, new

_DURATION = re.compile(r"(\d{1,6})(min|h|d)")
_UNITS = {"min": "minutes", "h": "hours", "d": "days"}

_file_option = click.option(
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
    """Make, list and revoke the keys that callers of a gateway show."""


@keys.command()
@click.option("--namespace", required=True, metavar="NAME", help="Whose memory the key opens.")
@click.option("--label", default="", metavar="TEXT", help="What it is for.")
@click.option("--expires", metavar="WHEN", help="30d, 12h, 2027-01-31 or 2027-01-31T12:00:00Z; without it never.")
@click.option("--admin", is_flag=True, help="It may load and unload models.")
@click.option("--max-running", type=click.IntRange(0), help="Requests at once; 0: any number.")
@click.option("--max-per-minute", type=click.IntRange(0), help="Requests in a minute; 0: any number.")
@_file_option
@_data_option
@json_option
def create(
    namespace: str, label: str, expires: str | None, path: Path | None, data: Path, as_json: bool, **limits: Any
) -> None:
    """Make a key and write it to standard output, this once: the file has a hash of it."""
    now = datetime.now(UTC).replace(microsecond=0)
    place = _place(path, data)
    try:
        key, shown = new(
            namespace, now, label=printable(label), expires=moment(expires, now) if expires else None, **limits
        )
        with key_file.changing(place) as known:
            known[key.id] = key
    except (AgentmemError, FileError) as error:
        raise Mistake(str(error)) from error
    if as_json:
        write_json({"key": str(shown), **as_dict(key, now)})
        return
    click.echo(
        f"key {key.id} of namespace {printable(namespace)}, kept as a hash in {place}; this is shown once:", err=True
    )
    click.echo(str(shown))


@keys.command("list")
@_file_option
@_data_option
@json_option
def list_keys(path: Path | None, data: Path, as_json: bool) -> None:
    """List the keys, without their secrets."""
    now = datetime.now(UTC)
    try:
        known = key_file.read(_place(path, data))[0].values()
    except FileError as error:
        raise Mistake(str(error)) from error
    if as_json:
        write_json([as_dict(key, now) for key in known])
        return
    console().print(keys_table(known, now))


def keys_table(known: Iterable[Key], now: datetime) -> Table:
    """Return the keys for people; when they were made, and the seconds of when they expire, are in --json."""
    names = {name: {**FOLD, "min_width": len(name)} for name in ("namespace", "label")}
    limits = {name: {**FOLD, "justify": "right"} for name in ("at once", "a minute")}

    def row(key: Key) -> list[str]:
        expires = key.expires.astimezone(UTC).strftime("%Y-%m-%d %H:%MZ") if key.expires else "never"
        most = ["" if limit is None else str(limit) for limit in (key.max_running, key.max_per_minute)]
        notes = [note for note, so in (("admin", key.admin), ("expired", key.expired(now))) if so]
        return [key.id, key.namespace, key.label, expires, *most, ", ".join(notes)]

    return table({"id": LINE, **names, "expires": LINE, **limits, "note": FOLD}, map(row, known))


@keys.command()
@click.argument("key_id", metavar="ID")
@_file_option
@_data_option
def revoke(key_id: str, path: Path | None, data: Path) -> None:
    """Revoke the key of this id. A gateway refuses it from the next request on, and ends what it has running."""
    place = _place(path, data)
    try:
        with key_file.changing(place) as known:
            if known.pop(key_id, None) is None:
                raise click.ClickException(f"{place} has no key {printable(key_id)}; `agentmem keys list` lists them")
    except FileError as error:
        raise Mistake(str(error)) from error
    click.echo(f"revoked {key_id}")


def moment(text: str, now: datetime) -> datetime:
    """Return the time: a while after `now`, or a date or time, of UTC where it has no zone. Raises Mistake."""
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


def as_dict(key: Key, now: datetime) -> dict[str, Any]:
    """Return a key as --json writes it."""
    return {**key.model_dump(mode="json", exclude={"sha256"}), "expired": key.expired(now)}


def _place(path: Path | None, data: Path) -> Path:
    """Return the file of keys. Raises Mistake where the usual one would be in a directory of something else."""
    if path is not None:
        return path
    try:
        layout.refuse_foreign(layout.data_directory(data))
    except (layout.ForeignDirectory, OSError) as error:
        raise Mistake(f"--data: {error}") from error
    return layout.key_file(data)
