"""The benchmarks one after the other."""

import shlex
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks.__main__ import NAMES
from benchmarks.series import CPU, GPU, commands, run


@pytest.mark.parametrize("line", sorted({*CPU, *GPU}))
def test_every_line_is_one_that_its_benchmark_takes(line: str) -> None:
    name, *rest = shlex.split(line.format(model="llama-3.1-8b=/models/x"))
    module = import_module(NAMES[name])
    if parser := getattr(module, "parser", None):
        parser().parse_args(rest)
    else:
        assert not rest, "give it a parser, so that this can be tested"


def test_commands(tmp_path: Path) -> None:
    place = tmp_path / "with space"
    found = commands("gpu", place, ["quality", "ttft", "restart"])
    assert [line[0] for line in found] == ["ttft", "restart", "quality"], "in the order of the series"
    assert f"llama-3.1-8b={place}/llama-3.1-8b" in found[0]
    with pytest.raises(ValueError, match="cpu: lookahead, speed; its parts are: memory, store"):
        commands("cpu", place, ["memory", "speed", "lookahead"])


def test_what_takes_too_long_is_interrupted() -> None:
    assert run(["timeit", "-n", "1", "pass"], 60) == 0
    assert run(["timeit", "-n", "1", "1 / 0"], 60) == 1
    assert run(["timeit", "-n", "1", "-s", f"import time; {SIGNALS}", "time.sleep(60)"], 1) == 124


SIGNALS = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
"""As `agentmem bench` does: a shell's background job ignores SIGINT, and so what it starts."""
