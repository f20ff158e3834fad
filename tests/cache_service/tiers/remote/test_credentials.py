"""Credentials come from where AWS's tools look, and the environment goes first."""

from pathlib import Path

from cache_service.tiers.remote import credentials

FILE = """
[default]
aws_access_key_id = AKID1
aws_secret_access_key = secret1

[work]
aws_access_key_id = AKID2
aws_secret_access_key = secret2
aws_session_token = token2

[role]
role_arn = arn:aws:iam::1:role/x
"""


def environment(folder: Path, **more: str) -> dict[str, str]:
    (folder / "credentials").write_text(FILE)
    (folder / "config").write_text("[default]\nregion = eu-north-1\n[profile work]\nregion = eu-west-1\n")
    return {
        "AWS_SHARED_CREDENTIALS_FILE": str(folder / "credentials"),
        "AWS_CONFIG_FILE": str(folder / "config"),
        **more,
    }


def test_the_profile_is_read_at_each_use(tmp_path: Path) -> None:
    read = credentials.from_files(environment(tmp_path))
    assert read is not None
    assert read()["access_key_id"] == "AKID1"
    (tmp_path / "credentials").write_text(FILE.replace("AKID1", "AKID3"))
    assert read() == {"access_key_id": "AKID3", "secret_access_key": "secret1", "expires_at": None}


def test_a_named_profile(tmp_path: Path) -> None:
    named = environment(tmp_path, AWS_PROFILE="work")
    read = credentials.from_files(named)
    assert read is not None
    assert read().get("token") == "token2"
    assert credentials.region(named) == "eu-west-1"


def test_the_environment_goes_first(tmp_path: Path) -> None:
    named = environment(tmp_path, AWS_ACCESS_KEY_ID="AKID", AWS_REGION="us-east-1")
    assert credentials.from_files(named) is None
    assert credentials.region(named) is None


def test_what_has_no_key_is_left_to_the_client(tmp_path: Path) -> None:
    assert credentials.from_files(environment(tmp_path, AWS_PROFILE="role")) is None
    assert credentials.from_files(environment(tmp_path, AWS_PROFILE="unknown")) is None
    assert credentials.from_files({"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none")}) is None


def test_a_damaged_file_is_none(tmp_path: Path) -> None:
    damaged = environment(tmp_path)
    (tmp_path / "credentials").write_text("no section\n")
    assert credentials.from_files(damaged) is None
