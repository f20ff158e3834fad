"""Prometheus's tools."""

import pytest

from tests import prometheus


@pytest.fixture(scope="session")
def promtool() -> prometheus.Programs:
    """promtool, found or unpacked."""
    try:
        return prometheus.programs()
    except prometheus.Unavailable as problem:
        pytest.skip(str(problem))
