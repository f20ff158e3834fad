"""A small model, loaded, and what is true of it; tests of other architectures have a `directory` of their own."""

from pathlib import Path

import pytest

from benchmarks.loading import load
from inference_service.models.fingerprint import ContentHashes
from inference_service.models.loading import LoadedModel
from tests.oracle import Oracle
from tests.tiny_models import write_gemma3, write_llama


@pytest.fixture(scope="module", params=[write_llama, write_gemma3], ids=["llama", "gemma3"])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return request.param(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def oracle(directory: Path) -> Oracle:
    return Oracle(directory)


@pytest.fixture(scope="module")
def model(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load("tiny", str(directory), hashes=ContentHashes(tmp_path_factory.mktemp("hashes") / "weights.json"))
