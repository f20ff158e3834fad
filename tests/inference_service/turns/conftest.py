"""The model of most turns: full attention alone."""

from pathlib import Path

import pytest

from tests.tiny_models import write_llama


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("llama"))
