"""A model of a hub is judged as a load by the worker's settings would."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inference_service.hub.candidates import Found, judge
from inference_service.models.sources import Listing
from inference_service.settings import WorkerSettings
from tests.inference_service.hub.test_commands import DEMO

CONFIG = json.loads((DEMO / "config.json").read_text())
LISTING = Listing("main", {"config.json": 1}, frozenset(), {"F32": 1 << 20}, gated=False)


def agents(settings: WorkerSettings) -> int:
    judged = judge(Found("org/tiny"), (LISTING, CONFIG, None), settings).fit
    assert judged is not None
    return judged.agents


@pytest.mark.parametrize("more", [{"kv_bits": "8"}, {"pool_bytes": 1 << 26}])
def test_the_settings_say_how_many_agents_fit(tmp_path: Path, more: dict[str, object]) -> None:
    given = {"data": tmp_path, "pool_bytes": 1 << 28, "kv_bits": "4"}
    assert 0 < agents(WorkerSettings(**{**given, **more})) < agents(WorkerSettings(**given))
