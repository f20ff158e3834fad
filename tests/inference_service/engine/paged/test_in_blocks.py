"""Sequences whose K and V kernels write and read in blocks, as on NVIDIA GPUs, beside the same over arrays, which are
held against the oracle. Both are packed by the kernel, which fits scales otherwise than MLX does.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from inference_service.engine import codec
from inference_service.engine.paged import arena, in_blocks
from inference_service.engine.paged.kernels import Kernels
from tests.inference_service.engine.paged.world import World, typical
from tests.tiny_models import write_gemma3, write_llama

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def device(kernels: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "on_cpu", lambda: False)
    monkeypatch.setattr(in_blocks, "ROWS_OF_ONE", 4)


class Both:
    """A world whose sequences are in blocks, and one over arrays."""

    def __init__(self, directory: Path, write: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch) -> None:
        self.worlds = []
        for kind in (arena.DeviceArena, arena.HostArena):
            monkeypatch.setattr(arena.Arena, "of", staticmethod(kind))
            (directory / kind.__name__).mkdir()
            self.worlds.append(World(directory / kind.__name__, write))
        self.worlds[0].store.kernels = Kernels(one=True)  # Those of few are not for float32.

    def run(self, *pieces: tuple[str, int]) -> None:
        for world in self.worlds:
            world.run(*((getattr(world, name), n) for name, n in pieces))

    def error(self) -> float:
        errors = []
        for name in ("one", "other"):
            found, wanted = (np.concatenate(world.said[getattr(world, name)]) for world in self.worlds)
            errors.append(typical(found, wanted, self.worlds[0].as_rows[getattr(self.worlds[0], name)]))
        return max(errors)


@pytest.mark.parametrize("write", [write_llama, write_gemma3])
def test_rows_are_what_they_are_over_arrays(
    write: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = Both(tmp_path, write, monkeypatch)
    both.run(("one", 100))
    both.run(("one", 300))
    both.run(("other", 50))
    for step in range(6):
        both.run(("one", 1), ("other", 5 if step % 3 == 0 else 1))
    both.run(("one", 1))
    both.run(("one", 20))
    assert both.error() < 5e-3
