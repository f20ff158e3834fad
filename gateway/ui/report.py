"""A run of a workflow as one HTML file: the page's own modules and styles, and the run as JSON.

`shell` is all but the run. The gateway serves it to the page, which puts the run in when somebody saves it, and the
command line does the same with `report`. A browser opens it from a disk, without a gateway: modules are in it as data:
addresses, which an import map names, since pages of a disk may load none beside them. Imports nothing of the servers'.
"""

import base64
import hashlib
import json
import re
from functools import cache
from pathlib import Path
from typing import Any, Final

STATIC: Final = Path(__file__).parent / "static"
SHELL: Final = "report.html"
"""The shell's path below the page."""

_ENTRY: Final = "report.js"
_SHEETS: Final = ("base.css", "views.css", "workflows.css")
_PLACE: Final = '<script type="application/json" id="run"></script>'
"""Where the run comes in; static/views/workflows/saved.js has the same."""
_IMPORT: Final = re.compile(r"^((?:import|export)\s[^;'\"]*?\bfrom\s+|import\s+)'(\.{1,2}/[^']+)'", re.MULTILINE)


def report(workflow: Any, events: list[Any]) -> str:
    """Return the file of a run: its Workflow and the events of its log, as REST has them."""
    data = json.dumps({"workflow": workflow, "events": events}, ensure_ascii=False, separators=(",", ":"))
    escaped = data.replace("<", "\\u003c")  # so no text of an agent ends the script
    return shell().replace(_PLACE, _PLACE.replace("></", f">{escaped}</"))


@cache
def shell() -> str:
    """Return the file without a run."""
    found = modules(_ENTRY)
    styles = "\n".join((STATIC / name).read_text(encoding="utf-8") for name in _SHEETS)
    names = json.dumps({"imports": {_named(path): _address(source) for path, source in found.items()}})
    begin = f"import '{_named(_ENTRY)}';"
    scripts = " ".join(map(_hashed, (names, begin)))
    policy = f"default-src 'none'; script-src {scripts} data:; style-src {_hashed(styles)}"
    policy += "; base-uri 'none'; form-action 'none'"
    return f"""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>A run of a workflow</title>
<style>{styles}</style>
<script type="text/plain">{_licences(found)}</script>
</head>
<body>
<div id="page"><noscript>This file shows the run that it holds with JavaScript.</noscript></div>
{_PLACE}
<script type="importmap">{names}</script>
<script type="module">{begin}</script>
</body>
</html>
"""


def modules(entry: str) -> dict[str, str]:
    """Return a module of the page and all that it imports, by their paths, with imports by names of the import map."""
    found: dict[str, str] = {}
    wanted = [entry]
    while wanted:
        path = wanted.pop()
        if path in found:
            continue

        def rename(imported: re.Match[str], path: str = path) -> str:
            target = (STATIC / path).parent.joinpath(imported[2]).resolve().relative_to(STATIC.resolve()).as_posix()
            wanted.append(target)
            return f"{imported[1]}'{_named(target)}'"

        found[path] = _IMPORT.sub(rename, (STATIC / path).read_text(encoding="utf-8"))
    return found


def _named(path: str) -> str:
    return f"page/{path}"


def _address(source: str) -> str:
    return f"data:text/javascript;base64,{base64.b64encode(source.encode()).decode()}"


def _hashed(text: str) -> str:
    """Return what a policy calls an inline script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _licences(found: dict[str, str]) -> str:
    """Return the licences of others' modules among these."""
    vendor = STATIC / "vendor"
    packages = [
        each
        for package in json.loads((vendor / "VENDORED.json").read_text(encoding="utf-8"))
        if any(f"vendor/{file['file']}" in found for file in package["files"])
        for each in (package, *package["contains"])
    ]
    texts = {each["licence_file"]: (vendor / each["licence_file"]).read_text(encoding="utf-8") for each in packages}
    return "\n".join(texts.values())
