from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from agentmem.console import Mistake
from gateway.cli.keys import moment
from gateway.cli.main import main
from gateway.edge.key_file import KeyFile, changing
from gateway.edge.key_ring import KeyRing

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


def keys(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["keys", *arguments])


def test_made_used_listed_and_revoked(tmp_path: Path) -> None:
    file = str(tmp_path / "k.json")
    made = keys("create", "--namespace", "team-a", "--label", "ci \x1b[2J", "--expires", "30d", "--keys", file)
    assert made.exit_code == 0, made.output
    key = made.stdout.strip()  # and nothing else, so that it can go into a file
    assert file in made.stderr
    ring = KeyRing(KeyFile(Path(file)))
    caller = ring.authenticate(key)
    assert (caller.namespace, caller.admin) == ("team-a", False)
    listed = keys("list", "--keys", file)
    assert caller.key_id in listed.output
    assert "ci \\x1b[2J" in listed.output
    assert "\x1b" not in listed.output
    (told,) = json.loads(keys("list", "--keys", file, "--json").output)
    assert told["namespace"] == "team-a"
    assert key.split("_", 2)[2] not in listed.output + str(told)
    assert "sha256" not in told
    assert keys("revoke", caller.key_id, "--keys", file).exit_code == 0
    assert not ring.stands(caller)
    again = keys("revoke", caller.key_id, "--keys", file)
    assert (again.exit_code, "has no key" in again.output) == (1, True)


def test_a_file_in_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert keys("create", "--namespace", "n", "--keys=~/k.json").exit_code == 0
    assert (tmp_path / "home" / "k.json").is_file()  # where `agentmem up --keys=~/k.json` looks
    assert not (tmp_path / "~").exists()


def test_what_a_key_may_be_told(tmp_path: Path) -> None:
    file = tmp_path / "k.json"
    made = keys(
        *("create", "--namespace", "n", "--admin", "--max-running", "2", "--max-per-minute", "0"),
        *("--keys", str(file), "--json"),
    )
    told = json.loads(made.stdout)
    caller = KeyRing(KeyFile(file)).authenticate(told["key"])
    assert caller.admin
    assert (caller.limits.running, caller.limits.per_minute) == (2, 0)
    assert "admin" in keys("list", "--keys", str(file)).output


def test_the_usual_file_is_in_the_data_directory(tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert keys("create", "--namespace", "n", "--data", str(data)).exit_code == 0
    assert (data / "keys.json").stat().st_mode & 0o777 == 0o600
    assert data.stat().st_mode & 0o777 == 0o700
    foreign = tmp_path / "home"
    foreign.mkdir()
    (foreign / "letters").touch()
    refused = keys("create", "--namespace", "n", "--data", str(foreign))
    assert (refused.exit_code, "not Agentmem's" in refused.output) == (2, True)
    assert [path.name for path in foreign.iterdir()] == ["letters"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["create", "--namespace", ""], "namespace: must not be empty"),
        (["create", "--namespace", "n", "--expires", "soon"], "soon is no time"),
        (["create", "--namespace", "n", "--expires", "2020-01-01"], "is over"),
        (["create"], "--namespace"),
        (["list"], "does not exist"),
    ],
)
def test_mistakes(tmp_path: Path, arguments: list[str], said: str) -> None:
    file = tmp_path / "k.json"
    result = keys(*arguments, "--keys", str(file))
    assert result.exit_code == 2
    assert said in result.output
    assert not file.exists()


def test_a_files_keys_come_into_another_all_or_none(tmp_path: Path) -> None:
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    for _ in range(2):
        assert keys("create", "--namespace", "n", "--keys", str(one)).exit_code == 0
    for new_ones in (2, 0):
        assert f"{new_ones} of 2 keys are new" in keys("import", str(one), "--keys", str(other)).output
    with changing(one) as known:
        taken, *_ = known
        known[taken] = known[taken].model_copy(update={"namespace": "eve"})
    keys("create", "--namespace", "n", "--keys", str(one))
    before = other.read_text()
    refused = keys("import", str(one), "--keys", str(other))
    assert (refused.exit_code, f"another key has the id {taken}" in refused.output) == (2, True)
    assert other.read_text() == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--keys", "k.json", "--cluster", "postgresql://db/d"], "in a file or in a cluster"),
        (["--cluster", "postgresql://u:secret@db/d"], "AGENTMEM_UP_CLUSTER"),
        (["--cluster", "host=db password=secret"], "AGENTMEM_UP_CLUSTER"),
        (["--cluster", "postgresql://127.0.0.1:1/none"], "cannot be used"),
    ],
)
def test_a_cluster_is_named_once_and_without_its_password(arguments: list[str], said: str) -> None:
    refused = keys("list", *arguments)
    assert (refused.exit_code, said in refused.output) == (2, True), refused.output
    assert "secret" not in refused.output


def test_the_command_line_goes_before_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTMEM_UP_CLUSTER", "postgresql://127.0.0.1:1/none")
    file = tmp_path / "k.json"
    assert keys("create", "--namespace", "n", "--keys", str(file)).exit_code == 0
    assert file.exists()


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("90min", NOW + timedelta(minutes=90)),
        ("12h", NOW + timedelta(hours=12)),
        ("30d", NOW + timedelta(days=30)),
        ("2027-01-31", datetime(2027, 1, 31, tzinfo=UTC)),
        ("2027-01-31T12:00:00", datetime(2027, 1, 31, 12, tzinfo=UTC)),
        ("2027-01-31T12:00:00+01:00", datetime(2027, 1, 31, 11, tzinfo=UTC)),
    ],
)
def test_moments(text: str, meant: datetime) -> None:
    assert moment(text, NOW) == meant


def test_no_moment() -> None:
    for text in ("", "30", "d", "9999999d", "2025-01-31", "30D "):
        with pytest.raises(Mistake):
            moment(text, NOW)
