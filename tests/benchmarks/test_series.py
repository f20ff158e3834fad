"""The benchmarks one after the other."""

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks import series
from benchmarks.__main__ import NAMES
from benchmarks.series import CPU, GPU, commands, run, take_turns

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("line", sorted({*CPU, *GPU}))
def test_every_line_is_one_that_its_benchmark_takes(line: str) -> None:
    name, *rest = shlex.split(line.format(model="llama-3.1-8b=/models/x", architectures=""))
    module = import_module(NAMES[name])
    if parser := getattr(module, "parser", None):
        parser().parse_args(rest)
    else:
        assert not rest, "give it a parser, so that this can be tested"


def test_commands(tmp_path: Path) -> None:
    place = tmp_path / "with space"
    found = commands("gpu", place, Path("/models"), ["ttft", "architectures", "memory"])
    assert [line[0] for line in found] == ["ttft", "memory", "architectures"], "in the order of the series"
    assert f"llama-3.1-8b={place}/llama-3.1-8b" in found[0]
    assert found[2] == ["architectures", "--models", "/models"]
    assert commands("cpu", place, None, ["architectures"]) == [["architectures", "--output", "architectures-demo-cpu"]]
    with pytest.raises(ValueError, match="cpu: lookahead, speed; its parts are: memory, store"):
        commands("cpu", place, None, ["memory", "speed", "lookahead"])


def test_what_takes_too_long_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(["timeit", "-n", "1", "pass"], 60) == 0
    assert run(["timeit", "-n", "1", "1 / 0"], 60) == 1
    assert run(["timeit", "-n", "1", "-s", f"import time; {SIGNALS}", "time.sleep(60)"], 1) == 124
    monkeypatch.setattr(series, "_PATIENCE", 0.5)
    stubborn = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN)"
    assert run(["timeit", "-n", "1", "-s", stubborn, "time.sleep(60)"], 1) == 124


SIGNALS = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
"""As `agentmem bench` does: a shell's background job ignores SIGINT, and so what it starts."""
MODULE = f"""
{SIGNALS}
import os, sys, time
from pathlib import Path

name, place, seconds = sys.argv[1:]
print(name, "began", flush=True)
Path(place, name).write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "") + " " + os.environ.get("TMPDIR", ""))
until = time.monotonic() + float(seconds)
try:
    while time.monotonic() < until and not Path(place, "go on").exists():
        time.sleep(0.01)
except KeyboardInterrupt:
    Path(place, name + " stopped").touch()
"""


@pytest.fixture
def benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of benchmarks that wait: NAME DIRECTORY SECONDS."""
    package = tmp_path / "package" / "benchmarks"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("benchmark")
def test_each_gpu_has_one_benchmark_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    begun: list[set[str]] = []

    def watch() -> None:
        deadline = time.monotonic() + 30
        while len(seen := {name for name in "abc" if (tmp_path / name).exists()}) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(1)
        begun.append(seen)
        (tmp_path / "go on").touch()

    watcher = threading.Thread(target=watch)
    watcher.start()
    ended = take_turns([[name, str(tmp_path), "60"] for name in "abc"], ["0", "2"], 50)
    watcher.join()
    assert begun == [{"a", "b"}], "two, and the third when one has ended"
    assert [(each.line[0], each.status) for each in ended] == [("a", 0), ("b", 0), ("c", 0)]
    used = {name: (tmp_path / name).read_text() for name in "abc"}
    assert {used["a"], used["b"]} == {f"0 {tmp_path}/gpu-0", f"2 {tmp_path}/gpu-2"}


@pytest.mark.usefixtures("benchmark")
def test_without_gpus_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "as it was")
    assert [each.status for each in take_turns([[name, str(tmp_path), "1"] for name in "ab"], [], 50)] == [0, 0]
    assert (tmp_path / "b").read_text().split(" ", 1)[1] == "as it was"
    assert (tmp_path / "b").stat().st_mtime - (tmp_path / "a").stat().st_mtime >= 1, "b began when a had ended"


@pytest.mark.slow
@pytest.mark.usefixtures("benchmark")
def test_who_stops_the_series_stops_all_that_run(tmp_path: Path) -> None:
    program = "from benchmarks import series; series.take_turns([[n, {0!r}, '60'] for n in 'abc'], ['0', '1'], 50)"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'protos'}", "PACKAGE": str(tmp_path / "package")}
    code = f"{SIGNALS}; import os; " + program.format(str(tmp_path)).replace(
        "series.take_turns", "os.environ['PYTHONPATH'] = os.environ['PACKAGE']; series.take_turns"
    )
    process = subprocess.Popen([sys.executable, "-c", code], env=environment, cwd=tmp_path, stderr=subprocess.DEVNULL)
    while not ((tmp_path / "a").exists() and (tmp_path / "b").exists()):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) != 0
    assert (tmp_path / "a stopped").exists()
    assert (tmp_path / "b stopped").exists()
    assert not (tmp_path / "c").exists(), "it was not begun"
