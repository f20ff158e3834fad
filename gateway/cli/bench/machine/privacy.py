"""Takes out who and where: people send these files."""

import getpass
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

_PATH: Final = re.compile(r"(?<![\w/.~<>])/(?!/)(?:[^\s/'\"`:,;()\[\]]+/)+")
"""An absolute path up to its last part; no URL, and no hub id."""

_ALL_TEXTS: Final = frozenset({"facts", "settings", "warnings"})
_TEXTS: Final = _ALL_TEXTS | {
    *("advice", "during", "error", "found", "kv_bits_reason", "model_id", "name", "note", "notes", "skipped", "source"),
}
"""Keys of free texts; `facts`, `settings` and `warnings` hold nothing else."""

_OF_MODEL: Final = "model "
"""A finding of the doctor's goes on with the model's name."""


def names(folder: Path) -> dict[str, str]:
    """Return what to write for this user's and machine's names."""
    host = socket.gethostname()
    found = {str(folder): "FOLDER", str(folder.resolve()): "FOLDER", str(Path.home()): "~", host: "HOST"}
    found[host.partition(".")[0]] = "HOST"
    with suppress(KeyError, OSError):  # a user without a name
        found[getpass.getuser()] = "USER"
    return {name: word for name, word in found.items() if len(name) > 1}


def scrubbed(found: Mapping[str, Any], words: Mapping[str, str]) -> dict[str, Any]:
    """Return it without these words in its free texts; keys and names that the page reads stay."""
    return {key: _scrubbed(key, value, words) for key, value in found.items()}


def _scrubbed(key: str, value: Any, words: Mapping[str, str]) -> Any:
    match value:
        case str() if key in _TEXTS or (key == "check" and value.startswith(_OF_MODEL)):
            return text(value, words) if key in _TEXTS else f"{_OF_MODEL}{text(value.removeprefix(_OF_MODEL), words)}"
        case list() | tuple():
            return [_scrubbed(key, each, words) for each in value]
        case dict():
            within = key if key in _ALL_TEXTS else ""
            return {name: _scrubbed(within or name, each, words) for name, each in value.items()}
    return value


def text(said: str, words: Mapping[str, str]) -> str:
    for name in sorted(words, key=len, reverse=True):
        said = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", words[name], said)
    return _PATH.sub("…/", said)
