"""Files of keys and TLS, looked at without a server."""

import subprocess
import sys
from pathlib import Path

import pytest

from agentmem.process.settings import SettingsError, load
from gateway.settings import GatewaySettings, check_files


def test_a_file_of_keys_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text("{")
    keys.chmod(0o600)
    with pytest.raises(SettingsError, match="keys: "):
        check_files(load(GatewaySettings, ["--keys", str(keys)]))


def test_agentmem_up_does_not_import_the_doors() -> None:
    program = "import sys, gateway.cli.up.command; print('gateway.app' in sys.modules, 'starlette' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["False", "False"]
