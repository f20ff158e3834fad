import re
from pathlib import Path
from typing import ClassVar, Literal

import pytest
from pydantic import Field
from pydantic_settings import SettingsConfigDict

from agentmem.process.settings import CONFIG_VARIABLE, ServiceSettings, SettingsError, load, options


class Settings(ServiceSettings):
    """Does what a test needs."""

    model_config = SettingsConfigDict(env_prefix="AGENTMEM_STORE_", cli_prog_name="test")
    toml_table: ClassVar[str] = "store"

    run_dir: str = "default"
    grace: float = Field(10.0, ge=0)
    model: list[str] = Field(default_factory=list, description="models")
    listen: str | None = Field(None, description="address")
    target: str = Field("", description="address")
    dtype: Literal["auto", "half"] = Field("auto", description="numbers")
    group: Literal[32, 64] | None = Field(None, description="elements")
    quotas: dict[str, int] = Field(default_factory=dict, description="bytes")


@pytest.fixture
def toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "agentmem.toml"
    monkeypatch.setenv(CONFIG_VARIABLE, str(path))
    return path


def test_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CONFIG_VARIABLE, raising=False)
    settings = load(Settings, [])
    assert (settings.run_dir, settings.grace, settings.model, settings.log_level) == ("default", 10.0, [], "info")


def test_flag_before_environment_before_toml(toml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toml.write_text('[store]\nrun-dir = "toml"\ngrace = 3\nmodel = ["toml"]\n')
    assert load(Settings, []).run_dir == "toml"
    monkeypatch.setenv("AGENTMEM_STORE_RUN_DIR", "environment")
    assert load(Settings, []).run_dir == "environment"
    settings = load(Settings, ["--run-dir", "flag", "--model", "a", "--model", "b"])
    assert settings.run_dir == "flag"
    assert settings.model == ["a", "b"]
    assert settings.grace == 3, "what no flag and no variable says comes from the file"


def test_tables_of_other_services_are_left_to_them(toml: Path) -> None:
    toml.write_text('[worker]\nanything = 1\n[gateway]\n[up]\n[store]\nrun-dir = "x"\n')
    assert load(Settings, []).run_dir == "x"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[store]\nrun-dri = 1\n", "2:1: store.run-dri: is not supported; did you mean run-dir?"),
        (
            "[store]\nxyzzy = 1\n",
            "2:1: store.xyzzy: is not supported; supported are log-level, log-format, otlp, run-dir, grace, model,"
            " listen, target, dtype, group, quotas",
        ),
        ("[store]\ngrace = -1\n", "2:1: store.grace: must be at least 0.0"),
        ('[store]\n\n  grace = "x"\n', "3:3: store.grace: 'x' is not a number"),
        ("[store]\nrun_dir = 1\n", "2:1: store.run-dir: must be text"),
        ('[store]\nmodel = "a"\n', "2:1: store.model: must be a list"),
        ('[store]\nlog-format = "xml"\n', "2:1: store.log-format: 'xml' is not allowed: text or json"),
        ("[sotre]\ngrace = 1\n", "1:1: sotre: is no table; tables are gateway, store, up, worker; did you mean store?"),
        ("store = 1\n", "1:1: store: must be a table, [store]"),
    ],
)
def test_a_mistake_in_the_file_is_told_with_its_place(toml: Path, text: str, problem: str) -> None:
    toml.write_text(text)
    with pytest.raises(SettingsError) as caught:
        load(Settings, [])
    assert str(caught.value) == f"{toml}:{problem}"


def test_a_mistake_in_a_flag_is_not_the_files(toml: Path) -> None:
    toml.write_text("[store]\ngrace = 1\n")
    with pytest.raises(SettingsError, match=r"^grace: must be at least 0"):
        load(Settings, ["--grace", "-1"])


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_speaks_of_the_command_line(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        load(Settings, [flag])
    told = capsys.readouterr().out
    assert "Does what a test needs.\n" in told
    assert "--model TEXT" in told
    assert "--grace N" in told
    assert "--dtype [auto|half]" in told
    assert "--group [32|64]" in told
    assert "--quotas NAME=N" in told
    assert "[default: 10.0]" in told
    assert not any(word in told for word in ("list[", "factory", "null", "[default: ]", "str"))


def test_toml_file_that_does_not_exist_is_refused(toml: Path) -> None:
    with pytest.raises(SettingsError, match=CONFIG_VARIABLE):
        load(Settings, [])


def test_unknown_variable_is_refused_with_what_was_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTMEM_STORE_RUN_DRI", "x")
    monkeypatch.setenv("AGENTMEM_WORKER_FOREIGN", "x")
    with pytest.raises(SettingsError, match=r"STORE_RUN_DRI is .*did you mean AGENTMEM_STORE_RUN_DIR\?$") as caught:
        load(Settings, [])
    assert "FOREIGN" not in str(caught.value)


@pytest.mark.parametrize("value", ["demo", "", '{"a": 1}'])
def test_ill_formed_list_in_the_environment_is_refused_by_name(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTMEM_STORE_MODEL", value)
    with pytest.raises(SettingsError, match="model"):
        load(Settings, [])


@pytest.mark.parametrize("value", ["a,b", "/models/a=b,c", r"a\b", "[a]", "true", "1.5", "", " a", "é"])
def test_a_value_of_a_list_is_taken_as_it_is(value: str) -> None:
    assert load(Settings, ["--model", value, f"--model={value}", "--model", "x"]).model == [value, value, "x"]


def test_log_level(toml: Path) -> None:
    toml.write_text("")
    assert load(Settings, ["--log-level", "DEBUG"]).log_level == "debug"
    with pytest.raises(SettingsError, match=r"^log_level: 'loud' is none of debug, info, warning, error$"):
        load(Settings, ["--log-level", "loud"])
    toml.write_text('[store]\nlog-level = "loud"\n')
    with pytest.raises(SettingsError, match=r":2:1: store.log-level: 'loud' is none of"):
        load(Settings, [])


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--run-dri", "x"], "No such option '--run-dri'. Did you mean '--run-dir'?"),
        (["--xyzzy"], "No such option '--xyzzy'."),
        (["--no-grace"], "No such option '--no-grace'."),
        (["--grace"], "Option '--grace' requires an argument."),
        (["--model", '["a","b"]'], """--model ["a","b"]: is JSON, which the environment takes; repeat the flag"""),
        (["--quotas", "a"], "--quotas a: write NAME=N, and repeat the flag for each name"),
        (["--quotas", "a=5,b=6"], "--quotas a=5,b=6: write NAME=N, and repeat the flag for each name"),
        (["stray"], "Got unexpected extra argument (stray)"),
    ],
)
def test_wrong_command_line_is_refused(given: list[str], told: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(told)):
        load(Settings, given)


class Described(Settings):
    url: str = Field("", description="postgresql://… of the ledger (default: none, it is here); see the guide")
    address: str = Field("a:1", description="HOST:PORT of it")
    tokens: int = Field(7, description="max_tokens of requests")


def test_help_is_sentences_with_defaults_as_click_writes_them() -> None:
    told = {option.name: (option.metavar, option.help) for option in options(Described)}
    assert told["url"] == ("TEXT", "postgresql://… of the ledger; see the guide.  [default: none, it is here]")
    assert told["address"] == ("HOST:PORT", "HOST:PORT of it.  [default: a:1]")
    assert told["tokens"] == ("N", "max_tokens of requests.  [default: 7]")
    assert told["model"] == ("TEXT", "Models.")
