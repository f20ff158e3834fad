import json
from pathlib import Path

import pytest

from agentmem import distribution
from agentmem.distribution import install

ROOT = Path(__file__).parents[2]


def test_an_extra_is_added_from_where_the_package_came() -> None:
    assert install("otel") == f"pip install '{ROOT}[otel]'"


@pytest.mark.parametrize(
    "recorded",
    [
        {"url": "file:///home/lena/a%20b/agentmem_server-0.1.0-py3-none-any.whl"},
        {"url": "https://example.com/agentmem.git", "vcs_info": {"vcs": "git"}},
        None,
    ],
)
def test_without_that_a_clone_is_named(recorded: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the index, where the package is not."""
    monkeypatch.setattr("importlib.metadata.PathDistribution.read_text", lambda *_: recorded and json.dumps(recorded))
    assert install("cpu") == "pip install '.[cpu]' in a clone of Agentmem"


def test_the_version_is_the_project_s() -> None:
    assert f'version = "{distribution.version()}"' in (ROOT / "pyproject.toml").read_text()
