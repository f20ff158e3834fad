from __future__ import annotations

from gateway.cli.top.history import History
from gateway.cli.top.names import GENERATED
from gateway.cli.top.page import Page
from gateway.cli.top.reading import Silence

from .pages import DOWN, Process, reading


def worker(tokens: int, started: float, at: float) -> Page:
    process = Process(started)
    process.count("agentmem_generation_tokens", tokens)
    return process.page(at)


def tell(history: History, at: float, page: Page | Silence) -> None:
    history.tell(reading(at, {"worker": page}))


def test_the_first_reading_has_nothing_to_compare_with() -> None:
    history = History()
    tell(history, 0, worker(5, 1.0, 0))
    assert history.seconds == 0
    assert history.processes["worker"].interval is None
    assert history.processes["store"].page is DOWN
    tell(history, 2, worker(9, 1.0, 2.5))
    seen = history.processes["worker"]
    assert history.seconds == 2
    assert seen.interval is not None
    assert seen.interval.rate(GENERATED) == 4 / 2.5
    assert seen.restarts == 0


def test_a_page_that_was_missed_is_compared_with_the_one_before() -> None:
    history = History()
    for at, page in ((0.0, worker(5, 1.0, 0.0)), (2.0, DOWN)):
        tell(history, at, page)
    assert history.processes["worker"].interval is None
    tell(history, 4, worker(25, 1.0, 4.0))
    seen = history.processes["worker"]
    assert seen.interval is not None
    assert seen.interval.rate(GENERATED) == 5
    assert seen.interval.seconds == 4
    assert seen.restarts == 0


def test_a_restart_is_counted_once_and_what_came_after_it_is_all_new() -> None:
    history = History()
    for at, page in ((0.0, worker(50, 1.0, 0.0)), (2.0, DOWN), (4.0, DOWN), (6.0, worker(60, 5.0, 6.0))):
        tell(history, at, page)
    seen = history.processes["worker"]
    assert seen.restarts == 1
    assert seen.interval is not None
    assert seen.interval.rate(GENERATED) == 30  # in the two seconds since it was down
    tell(history, 8, worker(61, 5.0, 8.0))
    tell(history, 10, DOWN)
    assert history.processes["worker"].restarts == 1
    tell(history, 12, worker(1, 11.0, 12.0))
    assert history.processes["worker"].restarts == 2
