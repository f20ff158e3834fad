"""The benchmark of starts and idle processes: real servers started once each, and what is said of figures."""

import time
from dataclasses import replace

import psutil

from benchmarks import at_rest
from benchmarks.at_rest import FIRST, LATER, MLX_LM, Start

ALONE = Start(2.0, {"mlx_lm": 1.5}, {"mlx_lm": 100_000_000})
STACK = Start(
    5.0,
    {"up": 1.0, "store": 1.0, "worker": 3.0, "gateway": 1.0},
    {"up": 70_000_000, "store": 80_000_000, "worker": 250_000_000, "gateway": 75_000_000},
)
IDLE = {LATER: {"up": 0.0, "store": 0.001, "worker": 0.002, "gateway": 0.001}, MLX_LM: {"mlx_lm": 0.005}}


async def test_a_process_that_computes_is_not_at_rest() -> None:
    class Busy(psutil.Process):
        def cpu_times(self):  # type: ignore[no-untyped-def]
            until = time.process_time() + 0.1
            while time.process_time() < until:
                pass
            return super().cpu_times()

    found = await at_rest.idle({"busy": Busy(), "me": psutil.Process()}, 0.2, settle=0.0)
    assert found["busy"] > 0.2


def test_what_is_said_of_figures() -> None:
    samples = {FIRST: [replace(STACK, answered=9.0)], LATER: [STACK], MLX_LM: [ALONE]}
    found = at_rest.figures({"starts": 1, "seconds": 30.0}, samples, IDLE)
    assert found["ways"][FIRST]["times_of_mlx_lm"]["median"] == 4.5
    assert found["ways"][LATER]["processor"]["median"] == 6.0
    starts, rest = at_rest.tables(found)
    assert ("RSS of worker", "250 MB", "250 MB", "") in starts.rows
    assert rest.rows[-1] == ("together", "0.40 %", "0.50 %")
