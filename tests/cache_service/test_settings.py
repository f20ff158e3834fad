"""Where the store's settings come from, and what they mean."""

from pathlib import Path

import pytest

from agentmem.kv.object_location import Location
from agentmem.process.settings import SettingsError, load
from cache_service.settings import StoreSettings
from cache_service.tiers.quotas import NO_QUOTAS, Quotas


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
