from __future__ import annotations

import subprocess
import sys

import pytest

from agentmem.console import Mistake
from gateway.cli.serving import _name


def test_a_name_without_a_model_is_refused() -> None:
    with pytest.raises(Mistake, match="NAME="):
        _name("=x")


def test_it_needs_nothing_of_the_services() -> None:
    code = "import sys, gateway.cli.serving; assert 'pydantic' not in sys.modules"
    subprocess.run((sys.executable, "-c", code), check=True)
