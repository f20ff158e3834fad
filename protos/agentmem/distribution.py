"""The installed package, which is `agentmem-server` to indexes and installers."""

import json
from functools import cache
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

NAME: Final = "agentmem-server"


@cache
def version() -> str:
    from importlib import metadata  # slow to import

    return metadata.version(NAME)


def install(extra: str) -> str:
    """Return the command that adds an extra to this installation."""
    if place := _installed_from():
        return f"pip install '{place}[{extra}]'"
    return f"pip install '.[{extra}]' in a clone of Agentmem"


def _installed_from() -> str:
    """Return the checkout or the wheel that this is from, "" if neither is there."""
    from importlib import metadata

    url = urlsplit(json.loads(metadata.distribution(NAME).read_text("direct_url.json") or "{}").get("url", ""))
    path = unquote(url.path)
    return path if url.scheme == "file" and Path(path).exists() else ""
