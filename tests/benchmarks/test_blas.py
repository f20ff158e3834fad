"""OpenBLAS against what MLX has without it."""

import json

import pytest

from benchmarks import blas, children
from benchmarks.models import DEMO
from gateway.cli.up.openblas import Preload, preload_here

PRELOADED = preload_here().environment


@pytest.mark.slow
@pytest.mark.skipif(not PRELOADED, reason="without OpenBLAS there is nothing to compare")
async def test_processes_differ_in_their_blas() -> None:
    """Measuring raises where one has the other BLAS; which is faster a busy machine does not tell."""
    found = json.loads(json.dumps(await blas.measure(tokens=300, decoded=4, samples=1)))
    products, threads = blas.tables(found)
    assert [row[0] for row in products.rows] == [*blas.WAYS, "times as fast"]
    assert len(threads.rows) == 6
    assert all(len(row) == len(threads.columns) for row in threads.rows)


@pytest.mark.slow
async def test_the_other_blas_is_no_sample() -> None:
    async with children.started("benchmarks.engine_alone", str(DEMO), computes=False) as system:
        with pytest.raises(RuntimeError, match="should have OpenBLAS: True; it has: False"):
            await blas.sample(system, openblas=True, tokens=8, decoded=1, number=0)


async def test_nothing_to_compare_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "preload_here", lambda: Preload({}, "OpenBLAS is not installed; install it"))
    with pytest.raises(SystemExit, match="install it"):
        await blas.main(blas.parser().parse_args([]))
