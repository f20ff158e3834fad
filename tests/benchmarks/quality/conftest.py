"""The demo model, loaded once for all tests that measure with it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.loading import load
from benchmarks.models import DEMO
from inference_service.models.fingerprint import ContentHashes
from inference_service.models.loaded import LoadedModel


@pytest.fixture(scope="package")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedModel]:
    hashes = ContentHashes(tmp_path_factory.mktemp("work") / "hashes.json")
    model = load("demo", str(DEMO), hashes=hashes, pool_bytes=1 << 26, batch_bytes=1 << 27)
    yield model
    model.release()
