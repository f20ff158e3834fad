from pathlib import Path

import pytest

from agentmem.process.model_sources import DEMO
from agentmem.process.models import RegisteredModel
from agentmem.process.settings import SettingsError
from inference_service.models.sources import registry
from tests.agentmem.process.test_model_registry import adapter, written


def test_paths_are_named_by_their_last_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert registry([str(tmp_path / "mine")])["mine"].source == str(tmp_path / "mine")
    assert registry(["./mine/"])["mine"].source == "mine"
    assert registry(["~/mine"])["mine"].source == str(tmp_path / "mine")
    assert registry(["x=~/mine"])["x"].source == str(tmp_path / "mine")
    assert registry(["mine/not"])["mine/not"].source == "mine/not", "what is no directory is a hub id"


@pytest.mark.parametrize("names", [["a=x", "a=y"], ["demo=x", "demo"], ["=x"], ["/no/such"], ["x=./none"]])
def test_registry_refuses(names: list[str]) -> None:
    with pytest.raises(SettingsError, match="--model"):
        registry(names)


def test_adapters_and_the_file(tmp_path: Path) -> None:
    adapter(tmp_path / "lora")
    file = written(tmp_path, "default = 'f+x'\n[models.f]\nsource = 'demo'\nttl = 5\nadapters.x = 'lora'")
    found = registry(["a=demo"], [f"a+y={tmp_path}/lora"], file)
    assert list(found) == ["f+x", "a", "f", DEMO, "a+y"]
    assert found["f+x"] == RegisteredModel("f+x", found[DEMO].source, f"{tmp_path}/lora", ttl=5.0)
    assert found["a+y"].source == found[DEMO].source != DEMO
    with pytest.raises(SettingsError, match="--adapter"):
        registry([], ["x"])
    with pytest.raises(SettingsError, match=": cannot be read"):
        registry([], file=tmp_path / "none.toml")
