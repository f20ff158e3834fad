"""Nodes that hear of each other ten times a second, so that tests need not wait, and that wait for each other.

On a busy machine an answer may take longer than a gateway waits for it before it routes a turn without.
"""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.cluster.membership.PERIOD_SECONDS", 0.1)
    monkeypatch.setattr("gateway.cluster.membership.LOCATE_SECONDS", 30.0)
    monkeypatch.setattr("gateway.cluster.placement._CONNECT_SECONDS", 30.0)
