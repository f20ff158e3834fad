"""Takes out who and where: people send these files."""

import getpass
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from agentmem.process.model_sources import expanded

_PART: Final = r"[^\s/'\"`:,;()\[\]~…]+"
_BEGIN: Final = r"(?:(?<![\w.])file:(?://[\w.-]*)?|(?<![\w/.~…<>]))"
_OWNED: Final = r"/(?:Users|home|Volumes)"
_SPACED: Final = rf"(?:~\w*|…|{_OWNED}|/(?:Library|media|mnt|private))"
"""Where names with spaces are usual; elsewhere a space ends a path."""

_PATHS: Final = (
    (re.compile(rf"(['\"`]){_OWNED}/(?:(?!\1|/).)+(?=\1)", re.IGNORECASE), r"\1…"),
    (re.compile(r"(['\"`])(?:file:/*|(?:~\w*|…)?/)(?:(?!\1).)+/(?=(?:(?!\1|/).)*\1)"), r"\1…/"),
    (re.compile(rf"{_BEGIN}{_SPACED}/(?:{_PART}(?: +{_PART}){{0,3}}/)+", re.IGNORECASE), "…/"),
    (re.compile(rf"{_BEGIN}{_OWNED}/{_PART}(?!/)", re.IGNORECASE), "…"),
    (re.compile(rf"{_BEGIN}/(?!/)(?:{_PART}/)+"), "…/"),
)
"""Paths up to their last parts; no URLs, and no hub ids."""

_ALL_TEXTS: Final = frozenset({"facts", "settings", "warnings"})
_TEXTS: Final = _ALL_TEXTS | {
    *("advice", "during", "error", "found", "kv_bits_reason", "model_id", "name", "note", "notes", "skipped", "source"),
}
"""Keys of free texts; `facts`, `settings` and `warnings` hold nothing else."""

_SHALLOW: Final = 2
"""Parts of a directory that names no one: /usr."""

_OF_MODEL: Final = "model "
"""A finding of the doctor's goes on with the model's name."""


def names(folder: Path, *, output: Path, model: Path, source: str = "") -> dict[str, str]:
    """Return what to write for names of this user and machine, and for directories that are known."""
    known = [output, *output.parents, *model.parents]
    found = {str(each): "…" for each in known if len(each.parts) > _SHALLOW}
    home, host = Path.home(), socket.gethostname()
    found |= {f"~/{each.relative_to(home)}": "…" for each in known if each != home and each.is_relative_to(home)}
    found |= {quote(each): word for each, word in found.items()}
    if expanded(source).is_dir():
        found[source] = f"…/{Path(source).name}"
    found |= {str(folder): "FOLDER", str(folder.resolve()): "FOLDER", str(home): "~", host: "HOST"}
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
        end = r"(?![\w-]|\.\w)" if "/" in name else r"(?!\w)"
        said = re.sub(rf"(?<!\w){re.escape(name)}{end}", words[name], said, flags=re.IGNORECASE)
    for pattern, shown in _PATHS:
        said = pattern.sub(shown, said)
    return said
