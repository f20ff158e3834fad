"""Links between pages, as GitHub shows them: each leads to a file of the repository, or to a heading in one."""

from __future__ import annotations

import functools
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from deploy.docs.hook import INCLUDED

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", *INCLUDED, *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]
_CODE = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(\s*([^)\s]+)[^)]*\)|^\[[^\]]+\]: *(\S+)|(?:href|src)=\"([^\"]+)", re.MULTILINE)


@functools.cache
def tracked() -> frozenset[str]:
    """The repository's files and directories: what is there but ignored is on no other machine."""
    command = ("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    files = [Path(name) for name in done.stdout.split("\0") if name]
    return frozenset(str(place) for file in files for place in (file, *file.parents))


def headings(markdown: str) -> set[str]:
    found, seen = set[str](), Counter[str]()
    for title in re.findall(r"^#{1,6} +(.*?) *#*$", _CODE.sub("", markdown), re.MULTILINE):
        shown = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", title)
        name = re.sub(r"\s", "-", re.sub(r"[^\w\- ]", "", shown.lower()))
        found.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return found | set(re.findall(r"<\w+ (?:id|name)=\"([^\"]+)\"", markdown))


def dead(page: str, markdown: str) -> Iterator[str]:
    for match in _LINK.finditer(_CODE.sub("", markdown)):
        target = next(filter(None, match.groups()))
        parts = urlsplit(target)
        if parts.scheme or parts.netloc:
            continue
        place = os.path.normpath(ROOT / Path(page).parent / unquote(parts.path)) if parts.path else str(ROOT / page)
        name = os.path.relpath(place, ROOT)
        there = name in tracked()
        if there and parts.fragment:
            there = parts.fragment in headings(Path(place).read_text(encoding="utf-8"))
        if not there:
            yield target


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    assert list(dead(page, (ROOT / page).read_text(encoding="utf-8"))) == []


def test_what_leads_nowhere_is_found() -> None:
    page = """
[a page](guides/memory.md), [one of the site](guides/other-languages.md), [a heading](guides/python.md#keys-and-tls),
[none](guides/python.md#keys), [here](#not-here), [elsewhere](https://example.org/x.md#y),
[a folder](../deploy/grafana/), ![a picture](guides/images/none.png), [two
lines](../nothing), <a href="nowhere.md">
```text
[no link](code.md)
```
[by name]: reference/none.md
"""
    assert list(dead("docs/index.md", page)) == [
        *("guides/other-languages.md", "guides/python.md#keys", "#not-here", "guides/images/none.png", "../nothing"),
        *("nowhere.md", "reference/none.md"),
    ]
