from pathlib import Path

import pytest
from pydantic import BaseModel, Field, ValidationError

from agentmem.process.model_sources import parse
from agentmem.process.models import VARIABLE, Offline, parse_all


@pytest.mark.parametrize(
    ("given", "name", "source"),
    [
        ("demo", "demo", "demo"),
        ("org/model", "org/model", "org/model"),
        ("short=org/model", "short", "org/model"),
        ("x=/models/a=b", "x", "/models/a=b"),
        ("/models/a=b", "a=b", "/models/a=b"),
        ("./a=b/c", "c", "./a=b/c"),
        ("~/mine/", "mine", "~/mine/"),
        ("mine/", "mine", "mine/"),
        ("x=a,b", "x", "a,b"),
        ("/models/Bu\u0308ro", "B\u00fcro", "/models/Bu\u0308ro"),
    ],
)
def test_parse(given: str, name: str, source: str) -> None:
    assert parse(given) == (name, source)


def test_the_working_directory_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()
    monkeypatch.chdir(tmp_path / "in")
    assert parse(".")[0] == "in"
    assert parse("..")[0] == tmp_path.name


@pytest.mark.parametrize("given", ["", "=x", "a=", "="])
def test_parse_refuses(given: str) -> None:
    with pytest.raises(ValueError, match="give a path, a hub id, or NAME= one of them"):
        parse(given)


def test_all_in_order_and_no_name_twice(tmp_path: Path) -> None:
    assert list(parse_all(["b=org/x", "a=org/y", str(tmp_path)])) == ["b", "a", tmp_path.name]
    with pytest.raises(ValueError, match="the name 'a' is taken"):
        parse_all(["a=org/x", "a=org/y"])
    with pytest.raises(ValueError, match="does not exist"):
        parse_all([f"{tmp_path}/a=b"])


class Settings(BaseModel):
    offline: Offline = Field(False, validate_default=True)


@pytest.mark.parametrize("word", ["1", "true", "yes", "TRUE", " on "])
def test_the_variable_forbids_whatever_the_setting_says(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, word)
    assert Settings().offline
    assert Settings(offline=False).offline


@pytest.mark.parametrize("word", ["", "0", "false", "no", "off", None])
def test_the_variable_never_allows_what_the_setting_forbids(word: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if word is not None:
        monkeypatch.setenv(VARIABLE, word)
    assert not Settings().offline
    assert Settings(offline=True).offline


def test_another_word_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "maybe")
    with pytest.raises(ValidationError, match="AGENTMEM_OFFLINE is 'maybe'; set it to 1"):
        Settings()
