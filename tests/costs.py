"""A pytest plugin: what cases cost in processor time, their processes included, and which may cost much.

Processor time, and not wall time: a busy machine makes a case take longer, but hardly makes it compute more. A case is
its setup and its call; fixtures of a module or a session belong to no case, nor does what is `kept` for later runs.

A run with --quick fails where a case without the mark `slow` or `essential` costs more than LIMIT. It leaves out what
is slow, and takes samples of what is marked `sampled`. `slow(ID, …)` marks only some cases of a parametrized test.
"""

from __future__ import annotations

import json
import math
import random
import time
import zlib
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import psutil
import pytest

LIMIT: Final = 3.0
"""Processor seconds of a case without a mark, with nothing else running."""
_BESIDE_OTHERS: Final = 2
"""How much longer a case computes in a run of several processes: hyperthreads share a core, all share caches. A start
of a worker takes 0.6 s alone, and 1.2 to 1.6 s there.
"""
_CACHE: Final = Path("~/.cache/agentmem").expanduser()
"""Browsers and tokenizers that tests keep for a user. The run that first makes them is not judged."""
_YARDSTICK: Final = 0.05
"""Processor seconds of `_yardstick` on the machine that LIMIT is for; a slower one may take as many times longer."""
_GRAIN: Final = 0.5
"""Processor time is not read again within so many seconds of wall time: a reading takes 8 ms beside eight processes."""
_PROPERTY: Final = "processor seconds"


class Meter:
    """The processor time of this process and its descendants."""

    def __init__(self) -> None:
        self._read_at = -_GRAIN
        self._seconds = 0.0
        self.shared = 0.0

    def read(self, *, now: bool = False) -> float:
        """Return the seconds used so far, or until at most _GRAIN ago."""
        if now or time.monotonic() - self._read_at >= _GRAIN:
            self._seconds = sum(_used(process) for process in _family())
            self._read_at = time.monotonic()
        return self._seconds


def _family() -> Iterator[psutil.Process]:
    root = psutil.Process()
    yield root
    yield from root.children(recursive=True)


def _used(process: psutil.Process) -> float:
    with suppress(psutil.Error):
        times = process.cpu_times()
        return float(times.user + times.system + times.children_user + times.children_system)
    return 0.0


def _yardstick() -> float:
    """Return the processor seconds of a fixed amount of work, the least of five."""
    found = []
    for _ in range(5):
        begun = time.process_time()
        json.loads(json.dumps({str(number): number * 7 % 13 for number in range(60_000)}))
        found.append(time.process_time() - begun)
    return min(found)


_METER: Final = Meter()
_BEGUN: Final = pytest.StashKey[tuple[float, float]]()


@contextmanager
def kept(*, now: bool = True) -> Iterator[None]:
    """Charge what is computed within to no case: it stays for later cases or runs."""
    before, within = _METER.read(now=now), _METER.shared
    try:
        yield
    finally:
        _METER.shared = within + _METER.read(now=now) - before


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("costs")
    group.addoption("--quick", action="store_true", help="leave out what is slow, and sample what is sampled")
    group.addoption("--shard", type=_shard, metavar="K/N", help="run the K-th of N parts of the files")
    group.addoption("--cost-limit", type=float, default=LIMIT, metavar="SECONDS", help="of a case without a mark")
    group.addoption("--costs", type=Path, metavar="FILE", help="write the processor seconds of cases, dearest first")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # the process that has all reports
        judged = config.option.quick and _CACHE.is_dir()
        beside = _BESIDE_OTHERS if config.getoption("numprocesses", None) else 1
        limit = config.option.cost_limit * beside if judged else math.inf
        config.pluginmanager.register(_Judge(limit, config.option.costs))


def _shard(text: str) -> tuple[int, int]:
    part, _, parts = text.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise ValueError(f"{text!r} is not K/N, as in 1/4")
    return int(part), int(parts)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out files of other shards, and for --quick what is slow, and all but one in n cases of sampled tests.

    Samples are the same ones each time. One case of each sampled test stays, and all that inject a fault.
    """
    left = set[pytest.Item]()
    if config.option.shard:
        part, parts = config.option.shard
        left.update(item for item in items if zlib.crc32(_file(item).encode()) % parts != part - 1)
    if config.option.quick:
        left.update(filter(is_slow, items))
        for cases in _sampled(item for item in items if item not in left):
            every = cases[0].get_closest_marker("sampled").args[0]  # type: ignore[union-attr]
            kept = random.Random(_test(cases[0])).sample(cases, -(-len(cases) // every))
            left.update(item for item in cases if item not in kept)
    if left:
        config.hook.pytest_deselected(items=sorted(left, key=lambda item: item.nodeid))
        items[:] = [item for item in items if item not in left]


def is_slow(item: pytest.Item) -> bool:
    """Return whether a case is marked `slow`: with its test, or by its own id."""
    for mark in item.iter_markers("slow"):
        if not mark.args or item.nodeid.partition("[")[2].removesuffix("]") in mark.args:
            return True
    return False


def _sampled(items: Iterable[pytest.Item]) -> Iterator[list[pytest.Item]]:
    cases: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled") and "fault" not in item.nodeid:
            cases[_test(item)].append(item)
    yield from cases.values()


def _test(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object]) -> Generator[None, object, object]:
    if fixturedef.scope == "function":
        return (yield)
    with kept(now=False):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    item.stash[_BEGUN] = (_METER.read(), _METER.shared)
    yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "call":
        used, shared = item.stash[_BEGUN]
        seconds = round(_METER.read() - used - (_METER.shared - shared), 2)
        allowed = is_slow(item) or item.get_closest_marker("essential") is not None
        report.user_properties.append((_PROPERTY, (seconds, allowed)))
    return report


class _Judge:
    """Collects what all processes of a run report."""

    def __init__(self, limit: float, file: Path | None) -> None:
        self._limit = limit
        self._file = file
        self._costs: dict[str, float] = {}
        self._over: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == _PROPERTY:
                seconds, allowed = value  # type: ignore[misc]
                self._costs[report.nodeid] = seconds
                if not allowed and seconds > self._limit and seconds > self._limit * _yardstick() / _YARDSTICK:
                    self._over.append(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._over and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if self._file:
            dearest = sorted(self._costs.items(), key=lambda cost: -cost[1])
            self._file.write_text("".join(f"{seconds:8.2f} {test}\n" for test, seconds in dearest))

    def pytest_unconfigure(self, config: pytest.Config) -> None:
        """Say which cases cost too much: after the summary, whose end is what one sees of a long run."""
        if self._over:
            terminal = config.get_terminal_writer()
            terminal.line(f"More than {self._limit:g} s of processor time: mark `slow` (tests/README.md)", red=True)
            for test in self._over:
                terminal.line(f"{self._costs[test]:8.2f} {test}")
