"""The bundled demo model, loaded once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

DIRECTORY = Path(__file__).parents[2] / "inference_service" / "demo_model"


@pytest.fixture(scope="session")
def directory() -> Path:
    return DIRECTORY


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(str(DIRECTORY))
