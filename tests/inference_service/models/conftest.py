"""Tiny models to swap."""

from pathlib import Path

import pytest

from tests.tiny_models import write_llama


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("models")
    return {name: str(write_llama(root / name, seed=seed)) for seed, name in enumerate("abcd")}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared, so that what is measured once is remembered."""
    return tmp_path_factory.mktemp("data")
