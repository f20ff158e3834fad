import pytest

from tests import prometheus


@pytest.fixture(scope="session")
def promtool() -> prometheus.Programs:
    try:
        return prometheus.programs()
    except prometheus.Unavailable as problem:
        pytest.skip(str(problem))
