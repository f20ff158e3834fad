"""Where the store's settings come from, what they mean, and where the remote tier is."""

from pathlib import Path

import pytest

from agentmem.kv.object_location import Location
from agentmem.process.settings import SettingsError, load
from cache_service.settings import StoreSettings
from cache_service.tiers.quotas import NO_QUOTAS, Quotas
from cache_service.tiers.remote.contract import check_endpoint


def test_the_defaults_are_in_the_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    settings = load(StoreSettings, [])
    assert settings.data_directory == Path("/home/ada/.agentmem")
    assert settings.address == "unix:/home/ada/.agentmem/run/store.sock"
    assert settings.metrics == "127.0.0.1:9466"


def test_quotas_of_all_namespaces_and_of_single_ones(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert load(StoreSettings, []).quotas == NO_QUOTAS
    file = tmp_path / "agentmem.toml"
    file.write_text("[store]\nnamespace-bytes = 100\n[store.namespaces]\nteam-a = 50\n")
    monkeypatch.setenv("AGENTMEM_CONFIG", str(file))
    assert load(StoreSettings, []).quotas == Quotas(100, {"team-a": 50})
    monkeypatch.setenv("AGENTMEM_STORE_NAMESPACE_BYTES", "200")
    told = ["--namespaces", "b=1", "--namespaces", "c=2"]
    assert load(StoreSettings, told).quotas == Quotas(200, {"team-a": 50, "b": 1, "c": 2})
    for wrong in (["--namespace-bytes", "0"], ["--namespaces", "b=0"], ["--namespaces", "b=x"], ["--namespaces", "b"]):
        with pytest.raises(SettingsError, match="namespace"):
            load(StoreSettings, wrong)


def test_the_remote_tier_is_off_unless_a_place_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(StoreSettings, []).remote_settings.location is None
    settings = load(
        StoreSettings,
        ["--remote", "s3://bucket/kv/", "--remote-endpoint", "http://127.0.0.1:9000/", "--remote-region", "eu-north-1"],
    ).remote_settings
    assert settings.location == Location("bucket", "kv")
    assert settings.endpoint == "http://127.0.0.1:9000"
    assert settings.region == "eu-north-1"


def test_secrets_have_no_place_in_settings() -> None:
    with pytest.raises(SettingsError, match="remote: must be none or s3://BUCKET/PREFIX"):
        load(StoreSettings, ["--remote", "s3://key:secret@bucket"])
    with pytest.raises(SettingsError, match=r"remote_endpoint: .*AWS's environment"):
        load(StoreSettings, ["--remote-endpoint", "http://key:secret@host"])


@pytest.mark.parametrize(
    ("text", "bucket", "prefix"),
    [
        ("s3://bucket", "bucket", ""),
        ("s3://bucket/", "bucket", ""),
        ("s3://my.bucket-1/a/b_c/d.e", "my.bucket-1", "a/b_c/d.e"),
        ("s3://bucket/kv/", "bucket", "kv"),
    ],
)
def test_a_bucket_and_a_prefix(text: str, bucket: str, prefix: str) -> None:
    assert Location.parse(text) == Location(bucket, prefix)


def test_two_spellings_of_one_place_are_one() -> None:
    assert str(Location.parse("s3://bucket/kv/")) == "s3://bucket/kv"
    assert str(Location.parse("s3://bucket/")) == "s3://bucket"


def test_none() -> None:
    assert Location.parse("none") is None


@pytest.mark.parametrize(
    "text", ["", "s3://", "s3:///kv", "s3://Bucket", "gs://bucket", "s3://b/../x", "s3://bucket//x", "s3://k:s@bucket"]
)
def test_what_is_no_place(text: str) -> None:
    with pytest.raises(ValueError, match="s3://BUCKET/PREFIX"):
        Location.parse(text)


@pytest.mark.parametrize("text", ["", "http://127.0.0.1:9000", "https://s3.example.com", "http://[::1]:9000"])
def test_an_endpoint(text: str) -> None:
    assert check_endpoint(f"{text}/" if text else "") == text


@pytest.mark.parametrize("text", ["127.0.0.1:9000", "http://user:password@host", "http://host/path", "http://host?x"])
def test_what_is_no_endpoint(text: str) -> None:
    with pytest.raises(ValueError, match="http://HOST:PORT"):
        check_endpoint(text)
