import re
from pathlib import Path

import pytest

from agentmem.process.model_registry import register
from agentmem.process.model_sources import DEMO
from agentmem.process.models import RegisteredModel
from tests.agentmem.process.test_model_file import adapter, written


def test_flags_first_then_the_file_then_demo(tmp_path: Path) -> None:
    file = written(tmp_path, "[models.f]\nsource = 'org/f'\n[models.a]\nsource = 'org/a'")
    assert list(register(["z=org/z", "b=org/b"], file=file)) == ["z", "b", "f", "a", DEMO]
    assert list(register([], file=file)) == ["f", "a", DEMO]


@pytest.mark.parametrize("default", ["b", "f", "f+lora", DEMO])
def test_the_files_default_is_first(tmp_path: Path, default: str) -> None:
    adapter(tmp_path / "lora")
    file = written(tmp_path, f"default = '{default}'\n[models.f]\nsource = 'org/f'\nadapters.lora = 'lora'")
    found = register(["z=org/z", "b=org/b"], file=file)
    assert next(iter(found)) == default
    assert sorted(found) == sorted(["z", "b", "f", "f+lora", DEMO])
    assert all(found[model_id].model_id == model_id for model_id in found)


def test_a_default_that_is_not_registered(tmp_path: Path) -> None:
    file = written(tmp_path, "\ndefault = 'x'\n")
    with pytest.raises(ValueError, match=r"models.toml:2:1: default: 'x' is not registered; registered are b, demo"):
        register(["b=org/b"], file=file)


def test_the_demo_model_can_have_settings(tmp_path: Path) -> None:
    found = register([], file=written(tmp_path, "[models.demo]\nsource = 'demo'\npinned = true"))
    assert found == {DEMO: RegisteredModel(DEMO, DEMO, pinned=True)}


@pytest.mark.parametrize("names", [["f=org/other"], [DEMO, "f"]])
def test_a_name_of_flags_and_file(tmp_path: Path, names: list[str]) -> None:
    file = written(tmp_path, "[models.f]\nsource = 'org/f'")
    with pytest.raises(ValueError, match=r"models.toml:1:1: models.f: another model has this name"):
        register(names, file=file)


def test_adapters_are_models_with_the_settings_of_their_base(tmp_path: Path) -> None:
    lora = str(adapter(tmp_path / "lora=1"))
    (tmp_path / "a+b").mkdir()
    (tmp_path / "a=b").mkdir()
    file = written(tmp_path, "[models.f]\nsource = 'org/f'\nkv_bits = 8\nttl = 5")
    given = [f"f+x={lora}", f"{DEMO}+x={lora}", f"a+b+x={lora}", f"a=b+x={lora}", f"a+y={lora}"]
    found = register([f"{tmp_path}/a+b", f"{tmp_path}/a=b", "a=org/a"], given, file)
    assert next(iter(found)) == "a+b"
    assert found["f+x"] == RegisteredModel("f+x", "org/f", lora, kv_bits="8", ttl=5.0)
    assert found["demo+x"] == RegisteredModel("demo+x", DEMO, lora)
    assert found["a+b+x"] == RegisteredModel("a+b+x", f"{tmp_path}/a+b", lora)
    assert found["a=b+x"] == RegisteredModel("a=b+x", f"{tmp_path}/a=b", lora)
    assert found["a+y"] == RegisteredModel("a+y", "org/a", lora)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("", "give BASE+NAME=DIRECTORY"),
        ("a", "give BASE+NAME=DIRECTORY"),
        ("a=LORA", "give BASE+NAME=DIRECTORY"),
        ("+x=LORA", "give BASE+NAME=DIRECTORY"),
        ("a+x", "give BASE+NAME=DIRECTORY"),
        ("a+x=", "give BASE+NAME=DIRECTORY"),
        ("a+=LORA", "give BASE+NAME=DIRECTORY"),
        ("b+x=LORA", "'b' is not registered; registered are a, demo"),
        ("a+x+y=LORA", "'x+y' cannot name an adapter"),
        ("a+x=/no/such", "/no/such does not exist"),
        ("a+x=~no-such-user/x", "~no-such-user/x does not exist"),
        ("a+taken=LORA", "the name 'a+taken' is taken"),
        ("a+x=EMPTY", "has no adapter_config.json and no adapters.safetensors"),
    ],
)
def test_adapters_that_are_refused(tmp_path: Path, given: str, said: str) -> None:
    lora = adapter(tmp_path / "lora")
    (tmp_path / "empty").mkdir()
    given = given.replace("LORA", str(lora)).replace("EMPTY", str(tmp_path / "empty"))
    with pytest.raises(ValueError, match=f"--adapter {re.escape(repr(given))}: .*{re.escape(said)}"):
        register(["a=org/a"], [f"a+taken={lora}", given])


def test_an_adapter_without_its_weights(tmp_path: Path) -> None:
    (adapter(tmp_path / "lora") / "adapters.safetensors").unlink()
    with pytest.raises(ValueError, match=r"has no adapters.safetensors; give the directory that mlx_lm.lora wrote"):
        register([], [f"demo+x={tmp_path}/lora"])


def test_what_is_no_path(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--model '~no-such-user/m': ~no-such-user/m does not exist"):
        register(["~no-such-user/m"])
    with pytest.raises(ValueError, match=r"source: .*/~no-such-user/m does not exist"):
        register([], file=written(tmp_path, "[models.m]\nsource = '~no-such-user/m'"))


def test_what_is_no_hub_id() -> None:
    with pytest.raises(ValueError, match="--model 'a/b/c': a/b/c does not exist, and is no hub id"):
        register(["a/b/c"])
