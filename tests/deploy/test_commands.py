import pytest

from agentmem.process.settings import SettingsError

from .commands import settings_of


def test_flags_and_variables_are_the_services_own() -> None:
    command = ["/opt/agentmem/bin/agentmem-store", "--data", "/d"]
    assert settings_of(command, {"AGENTMEM_STORE_GRACE": "20"}).model_dump()["grace"] == 20.0
    with pytest.raises(SettingsError, match="--no-such-flag"):
        settings_of([*command, "--no-such-flag"], {})
    with pytest.raises(SettingsError, match="AGENTMEM_STORE_DATUM"):
        settings_of(command, {"AGENTMEM_STORE_DATUM": "/d"})
    with pytest.raises(AssertionError, match="none of our programs"):
        settings_of(["/usr/bin/true"], {})
