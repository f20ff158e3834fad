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


def names(folder: Path) -> dict[str, str]:
    """Return what to write for this user's and machine's names."""
    host = socket.gethostname()
    found = {str(folder): "FOLDER", str(folder.resolve()): "FOLDER", str(Path.home()): "~", host: "HOST"}
    found[host.partition(".")[0]] = "HOST"
    with suppress(KeyError, OSError):  # a user without a name
        found[getpass.getuser()] = "USER"
    return {name: word for name, word in found.items() if len(name) > 1}


def scrubbed(value: Any, words: Mapping[str, str]) -> Any:
    """Return JSON whose texts have none of these words, and no absolute paths."""
    match value:
        case str():
            for name in sorted(words, key=len, reverse=True):
                value = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", words[name], value)
            return _PATH.sub("…/", value)
        case list():
            return [scrubbed(each, words) for each in value]
        case dict():
            return {scrubbed(key, words): scrubbed(each, words) for key, each in value.items()}
    return value
