from __future__ import annotations

import pytest

from gateway.cli.top import sources


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is busy answers late."""
    monkeypatch.setattr(sources, "PATIENCE", 60.0)
