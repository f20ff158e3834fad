"""MkDocs' hook (mkdocs.yml): adds files that are made from the code, and those from elsewhere.

A generated page has a hand-written head in `docs/`. The rest goes between `<!-- generated: NAME -->` and
`<!-- end -->`, in the place of a text for readers of the repository. Links work in the repository, and on the site lead
to the pages that are made of these files.
"""

import re
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

from deploy.docs import command_line, contract, errors, fields, http_api, metrics, settings

ROOT: Final = Path(__file__).parents[2]
GENERATED: Final = {
    "cli": command_line.page,
    "errors": errors.page,
    "fields": fields.page,
    "grpc": contract.page,
    "http": http_api.page,
    "metrics": metrics.page,
    "settings": settings.page,
}
INCLUDED: Final = {
    "benchmarks/RESULTS.md": "results/all.md",
    "deploy/METRICS.md": "reference/metrics.md",
    "deploy/RUNBOOK.md": "operations/runbook.md",
    "deploy/examples/README.md": "guides/other-languages.md",
    "deploy/examples/grpcurl/README.md": "guides/grpcurl.md",
    "inference_service/demo_model/README.md": "results/demo-model.md",
    "deploy/launchd/README.md": "operations/launchd.md",
    "deploy/homebrew/README.md": "operations/homebrew.md",
    "deploy/systemd/README.md": "operations/systemd.md",
    "ARCHITECTURE.md": "project/architecture.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
}
COPIED: Final = {"benchmarks/results": "results/results"}

_MARKER: Final = re.compile(r"<!-- generated: (\w+) -->.*?<!-- end -->", re.DOTALL)
_LINK: Final = re.compile(r"```.*?```|(!?)\[([^\]]+)\]\(([^)\s]+)\)", re.DOTALL)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    for source, page in INCLUDED.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=_relinked(text, source, page)))
    for directory, place in COPIED.items():
        for path in sorted((ROOT / directory).iterdir()):
            files.append(File.generated(config, f"{place}/{path.name}", abs_src_path=str(path)))
    files.append(File.generated(config, "reference/openapi.json", content=http_api.serialized()))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make the links those of the site, and fill in what is generated."""
    place = page.file.src_uri
    if place not in INCLUDED.values():  # these are made so already
        markdown = _relinked(markdown, f"docs/{place}", place)
    return _MARKER.sub(lambda match: GENERATED[match[1]](), markdown)


def _relinked(text: str, source: str, page: str) -> str:
    """Return `text` with its links made relative to the site; those to files that it does not have become code."""

    def link(match: re.Match[str]) -> str:
        target = urlsplit(match[3] or "")
        if target.scheme or not target.path:  # none of the repository, or code
            return match[0]
        path = str((ROOT / source).parent.joinpath(target.path).resolve().relative_to(ROOT))
        place = INCLUDED.get(path) or _copied(path) or _page_of_docs(path)
        if place is None:
            return f"{match[2]} (`{path}`)"
        anchor = f"#{target.fragment}" if target.fragment else ""
        return f"{match[1]}[{match[2]}]({get_relative_url(place, page)}{anchor})"

    return _LINK.sub(link, text)


def _copied(path: str) -> str | None:
    directory, _, name = path.rpartition("/")
    return f"{COPIED[directory]}/{name}" if directory in COPIED else None


def _page_of_docs(path: str) -> str | None:
    return path.removeprefix("docs/") if path.startswith("docs/") else None
