"""The kinds of memory that a pool may be in; a device's own is emulated where there is none."""

import pytest

from inference_service.engine.paged.arena import Arena, DeviceArena, HostArena


@pytest.fixture(params=[HostArena, pytest.param(DeviceArena, marks=pytest.mark.slow)])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[Arena]:
    if request.param is DeviceArena:
        request.getfixturevalue("kernels")
    monkeypatch.setattr(Arena, "of", staticmethod(request.param))
    return request.param  # type: ignore[no-any-return]
