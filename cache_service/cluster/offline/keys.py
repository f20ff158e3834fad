"""Keys of callers in a cluster's database, for `agentmem keys`, which gives and takes them as its file has them."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from cache_service.cluster import keys
from cache_service.cluster.keys import ApiKey, KeyTaken
from cache_service.cluster.offline.server import opened
from cache_service.cluster.postgres.settings import Settings
from cache_service.connection import Connection
from cache_service.offline.findings import CannotCheck

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def add(settings: Settings, text: str) -> int:
    """Add the keys of a file's text, all or none; how many were new. Raises CannotCheck."""
    given = [_row(each) for each in json.loads(text)["keys"]]
    with opened(settings) as postgres:
        return postgres.write_blocking(_add, given)


def listed(settings: Settings) -> str:
    """All keys, as the text of a file. Raises CannotCheck."""
    with opened(settings) as postgres:
        found = postgres.read_blocking(keys.every)
    return json.dumps({"version": 1, "keys": [_object(key) for key in found]})


def revoke(settings: Settings, key_id: str) -> bool:
    """Delete a key; whether it was there. Raises CannotCheck."""
    with opened(settings) as postgres:
        return postgres.write_blocking(keys.revoke, key_id)


def _add(connection: Connection, given: list[ApiKey]) -> int:
    try:
        return keys.add(connection, given)
    except KeyTaken as error:
        raise CannotCheck(str(error)) from error


def _row(given: dict[str, Any]) -> ApiKey:
    times = {name: None if given.get(name) is None else _microseconds(given[name]) for name in ("created", "expires")}
    usual = {"label": "", "max_running": None, "max_per_minute": None}
    return ApiKey(**{**usual, **given, **times, "admin": int(given.get("admin", False))})


def _object(key: ApiKey) -> dict[str, Any]:
    times = {"created": _time(key.created), "expires": None if key.expires is None else _time(key.expires)}
    return {**key._asdict(), **times, "admin": bool(key.admin)}


def _microseconds(text: str) -> int:
    return (datetime.fromisoformat(text) - _EPOCH) // _MICROSECOND


def _time(microseconds: int) -> str:
    return (_EPOCH + microseconds * _MICROSECOND).isoformat()
