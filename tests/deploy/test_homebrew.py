"""The formula of deploy/homebrew against pyproject.toml and `agentmem up`; evaluated where there is Ruby."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from gateway.cli.up.settings import UpSettings

from .commands import DEPLOY, settings_of
from .test_package import pyproject

FORMULA = DEPLOY / "homebrew" / "agentmem.rb"
LANGUAGE = Path(__file__).with_name("homebrew.rb")
TEXT = FORMULA.read_text(encoding="utf-8")


def ruby(*arguments: str | Path, folder: Path | None = None, home: Path | None = None) -> str:
    if (program := shutil.which("ruby")) is None:
        pytest.skip("no Ruby: apt-get install ruby")
    variables = {"HOME": str(home)} if home else {}
    command = ["env", *(f"{name}={value}" for name, value in variables.items()), program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def one(pattern: str) -> str:
    (found,) = re.findall(pattern, TEXT)
    return str(found)


def test_it_installs_this_release() -> None:
    project = pyproject()["project"]
    package = project["name"].replace("-", "_")
    assert one(r'url "(.*)"').endswith(f"/a/{project['name']}/{package}-{project['version']}.tar.gz")
    assert one(r"libexec\}/(\w+)-#\{version\}-py3-none-any\.whl") == package, "what hatchling calls the wheel"
    assert one(r'license "(.*)"') == project["license"]
    assert one(r"whl\[(\w+)\]") == "metal" and "metal" in project["optional-dependencies"]
    assert set(one(r"%w\[(.*)\]").split()) == set(project["scripts"])


def test_its_python_is_new_enough() -> None:
    least = tuple(map(int, pyproject()["project"]["requires-python"].removeprefix(">=").split(".")))
    pythons = re.findall(r'"python@([\d.]+)"', TEXT)
    assert len(set(pythons)) == 1 and tuple(map(int, pythons[0].split("."))) >= least
    assert "arch: :arm64" in TEXT and "macos: :sonoma" in TEXT, "MLX's wheels"


def flags(line: str) -> list[str]:
    return re.findall(r'"([^"]*)"', line)


def test_what_the_service_runs() -> None:
    command = flags(one(r"run \[opt_bin/(.*)\]"))
    settings = settings_of(command, {})
    assert command[:2] == ["agentmem", "up"] and settings.model_dump()["log_format"] == "text"
    assert "AGENTMEM_CONFIG" in one(r"environment_variables (.*)")


def test_its_options_are_those_of_up(tmp_path: Path) -> None:
    """The file is valid as it is, and without the comment signs."""
    text = re.sub("^      ", "", TEXT.partition("<<~TOML\n")[2].partition("    TOML\n")[0], flags=re.MULTILINE)
    for given, model in ((text, []), (text.replace("# model", "model"), ["mlx-community/Llama-3.2-3B-Instruct-4bit"])):
        (tmp_path / "agentmem.toml").write_text(given)
        found = settings_of(["agentmem", "up"], {"AGENTMEM_CONFIG": str(tmp_path / "agentmem.toml")})
        assert isinstance(found, UpSettings) and found.model == model


def test_ruby_reads_it() -> None:
    ruby("-c", FORMULA)
    told: dict[str, Any] = json.loads(ruby(LANGUAGE, FORMULA))
    service = dict(told["service"])
    assert service["run"] == ["/opt/homebrew/opt/agentmem/bin/agentmem", "up", "--log-format", "text"]
    assert service["keep_alive"] == {"successful_exit": False}, "not again after `brew services stop`"
    assert service["log_path"] == service["error_log_path"] == "/opt/homebrew/var/log/agentmem.log"
    assert told["depends_on"][:2] == [{"arch": "arm64"}, {"macos": "sonoma"}]


@pytest.mark.slow
def test_its_own_test_passes_here(tmp_path: Path) -> None:
    """With the programs of this environment; the same block is `brew test`."""
    with TemporaryDirectory(dir="/tmp", prefix="am") as home:  # short, for sockets
        ruby(LANGUAGE, FORMULA, "test", Path(sys.executable).parent, folder=tmp_path, home=Path(home))
