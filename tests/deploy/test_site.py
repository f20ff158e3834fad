"""The documentation: it builds without a warning and without a network, and its reference has all that there is."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from agentmem.errors import AgentmemError
from agentmem.process.settings import load
from deploy.docs import command_line, contract, fields, http_api, settings
from deploy.docs.errors import errors
from gateway.api.fields import REFUSED
from gateway.cli.up.command import up
from tests.deploy.metrics import documented

ROOT = Path(__file__).parents[2]
LOADED = {
    "script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src",
    "object": "data", "embed": "src",
}  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        (sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)),
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return out


def text(site: Path, page: str) -> str:
    found = (site / page / "index.html").read_text(encoding="utf-8")
    return html.unescape(re.sub(r"<[^>]+>", "", found.partition("<article")[2]))


def test_every_proto_is_on_the_page_of_the_contract(site: Path) -> None:
    page = text(site, "reference/grpc")
    assert len(contract.PROTOS) > 5
    assert [path.name for path in contract.PROTOS if path.read_text(encoding="utf-8").strip() not in page] == []


def test_every_field_of_the_dialects_is_on_the_page_of_fields(site: Path) -> None:
    page = text(site, "reference/fields")
    models = [name for model in fields.ENDPOINTS.values() for name in model.model_json_schema()["properties"]]
    assert [name for name in (*models, *REFUSED) if f"{name}\n" not in page] == []


def test_every_command_and_flag_is_on_the_page_of_commands(site: Path) -> None:
    page = text(site, "reference/cli")
    for each in command_line.commands():
        assert f"{each.words}¶" in page
        assert [flag for flag in command_line.flags(each.command) if flag not in page] == [], each.words


def test_every_setting_is_on_the_page_of_settings(site: Path) -> None:
    page = text(site, "reference/settings")
    for each in settings.CLASSES:
        section = page.partition(f"{each.model_config['cli_prog_name']}¶")[2]
        assert [flag for flag in settings.flags(each) if flag not in section] == [], each
        prefix = each.model_config["env_prefix"]
        assert [name for name in each.model_fields if f"{prefix}{name}".upper() not in section] == [], each


def test_every_route_is_on_the_page_of_http(site: Path) -> None:
    page = text(site, "reference/http")
    paths = http_api.document()["paths"]
    assert len(paths) > 25
    assert [f"{m} {path}" for path, ways in paths.items() for m in ways if f"{m.upper()} {path}¶" not in page] == []
    assert (site / "reference" / "openapi.json").is_file()


def test_every_metric_and_error_is_on_its_page(site: Path) -> None:
    assert [name for name in documented() if name not in text(site, "reference/metrics")] == []
    page = text(site, "reference/errors")
    assert [each for each in errors(AgentmemError) if f"{each.code.name}\n{each.http_status}\n" not in page] == []


class Loads(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        assert "mermaid" not in (values.get("class") or "").split(), "the theme would load Mermaid from a CDN"
        if target := values.get(LOADED.get(tag, "")):
            self.found.append(target)


def loaded(site: Path) -> Iterator[tuple[Path, str]]:
    for path in site.rglob("*.html"):
        parser = Loads()
        parser.feed(path.read_text(encoding="utf-8"))
        yield from ((path, target) for target in parser.found)
    for path in site.rglob("*.css"):
        yield from ((path, target) for target in re.findall(r"url\(['\"]?([^)'\"]+)", path.read_text(encoding="utf-8")))


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    found = list(loaded(site))
    assert len(found) > 100
    assert [each for each in found if re.match(r"(\w+:)?//", each[1])] == []


def test_the_readme_is_a_page_long() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 200


def test_commands_of_the_readme_fit_a_phone() -> None:
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Two commands\n")[2].partition("\n## ")[0]
    blocks = dict(re.findall(r"### ([^\n]+)\n\n```sh\n(.*?)```", section, re.DOTALL))
    assert [*blocks] == ["Mac", "Linux", "NVIDIA GPU"]
    for block in blocks.values():
        assert block.count("\n") == 3
        assert max(map(len, block.splitlines())) <= 42


def test_flags_that_pages_name_exist() -> None:
    """In code within prose, and on command lines of `agentmem`."""
    known = {"--help"} | {flag for each in settings.CLASSES for flag in settings.flags(each)}
    known |= {flag for each in command_line.commands() for flag in command_line.flags(each.command)}
    known |= {flag for each in up.params for flag in each.opts}  # with those of other servers
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        content = page.read_text(encoding="utf-8")
        prose = re.sub(r"```.*?```", "", content, flags=re.DOTALL)
        lines = re.findall(r"^(?:AGENTMEM_\S+ )?agentmem.*", content, re.MULTILINE) + re.findall(r"`(--[^`]+)`", prose)
        named = {flag for line in lines for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", line)}
        assert named <= known, page


def test_settings_files_that_pages_show_are_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = [
        block
        for page in (ROOT / "docs").rglob("*.md")
        for block in re.findall(r"```toml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    ]
    files = [block for block in shown if "[up]" in block]
    assert len(shown) > len(files) > 0
    for number, block in enumerate(files):
        path = tmp_path / f"{number}.toml"
        path.write_text(block, encoding="utf-8")
        monkeypatch.setenv("AGENTMEM_CONFIG", str(path))
        for each in settings.CLASSES:
            load(each, [])
    for block in shown:
        tomllib.loads(block)
