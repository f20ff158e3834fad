"""Nodes that hear of each other ten times a second, so that tests need not wait."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.cluster.membership.PERIOD_SECONDS", 0.1)
