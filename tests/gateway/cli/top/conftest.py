from __future__ import annotations

import pytest

from gateway import scraping


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is busy answers late."""
    monkeypatch.setattr(scraping, "PATIENCE", 60.0)
