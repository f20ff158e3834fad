"""Both servers side by side, in a table. Pure."""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from gateway.cli.bench.machine.plan import LENGTHS, OURS, PACED_TURNS, THEIRS, TOGETHER

Found = Mapping[str, Any]
Samples = list[float]

_DASH: Final = "–"
_TEN, _HUNDRED = 10, 100
"""Figures from these on have a digit less."""


class Row(NamedTuple):
    label: str
    ours: Samples
    theirs: Samples
    is_speed: bool = False


def compared(found: Found) -> Iterator[str]:
    yield "The same turns over the same files, by one client over OpenAI's API; one server at a time, in two rounds."
    yield ""
    rows = (_cells(row) for row in _rows(found) if row.ours or row.theirs)
    yield from table(("", OURS, THEIRS, "agentmem, times as fast"), rows, numbers=True)
    for part in [*filter(None, parts_of(found, "work", OURS))][:1]:
        yield ""
        yield (
            f"At work: {part['agents']} agents of {part['context']:,} tokens, each {part['turns']} turns of "
            f"{part['new']} new tokens and {part['generated']} generated ones, without a pause; "
            f"{part['reused_share']:.0%} of all prompts came from memory."
        )
    yield ""
    yield "Median (range, where there are several samples). A next turn has some 30 new tokens. mlx-lm keeps what it"
    yield "computed in memory only: it has nothing on disk, and computes an agent again after a start. Agentmem guesses"
    yield "tokens from its context, which helps where answers repeat themselves."
    for weights in [part["weights"] for part in parts_of(found, "start", THEIRS) if "weights" in part][:1]:
        yield f"Its weights are {weights}."


def _rows(found: Found) -> Iterator[Row]:
    def both(label: str, part: str, read: Any, *, is_speed: bool = False) -> Row:
        ours, theirs = ([*read(parts_of(found, part, server))] for server in (OURS, THEIRS))
        return Row(label, ours, theirs, is_speed)

    yield both("first start, to an answer", "start", lambda parts: _values(parts[:1], "first_answer"))
    after = [part["prompt"] for part in parts_of(found, "start", OURS)[1:] if "prompt" in part]
    remembers = f" of an agent of {after[0]:,} tokens" if after else ""
    yield both(f"later start, to an answer{remembers}", "start", lambda parts: _values(parts[1:], "first_answer"))
    yield both(
        "the same turn, from its request to its first token",
        "start",
        lambda parts: _values(parts[1:], "of_it_the_turn"),
    )
    for length in LENGTHS:
        for name, words in (("cold", "TTFT"), ("hot", "next turn, in memory"), ("warm", "next turn, from disk")):
            yield both(f"{length:,} tokens: {words}", "first tokens", lambda p, n=name, at=length: _first(p, at, n))
        yield both(
            f"{length:,} tokens: prompt tokens/s", "first tokens", lambda p, at=length: _prompts(p, at), is_speed=True
        )
    for agents in TOGETHER:
        label = f"tokens/s, {agents} agent{'s at once' if agents > 1 else ''}"
        yield both(
            label, "answers", lambda p, n=str(agents): _values(_within(p, n), "tokens_per_second"), is_speed=True
        )
    yield both("at work: tokens/s", "work", lambda parts: _values(parts, "tokens_per_second"), is_speed=True)
    yield both("at work: first token, median", "work", lambda parts: _values(parts, "first_p50"))
    yield both("at work: first token, 95th percentile", "work", lambda parts: _values(parts, "first_p95"))
    for name, words in (("back_to_back", "without a pause"), ("paced", "10 s apart")):
        yield both(
            f"turns {words}: tokens/s, {PACED_TURNS} turns",
            "paced",
            lambda p, n=name: [each for part in _within(p, n) for each in part["tokens_per_second"] if each],
            is_speed=True,
        )


def parts_of(found: Found, part: str, server: str) -> list[Found]:
    """Return what a part found, round after round; a round without is {}."""
    return [each.get("found", {}) for each in found["parts"] if (each["part"], each["server"]) == (part, server)]


def _within(parts: Iterable[Found], name: str) -> list[Found]:
    return [part[name] for part in parts if name in part]


def _values(parts: Iterable[Found], name: str) -> Samples:
    return [part[name] for part in parts if part.get(name)]


def _samples(parts: Iterable[Found], length: int) -> Iterator[Found]:
    for part in _within(parts, str(length)):
        yield from part.get("samples", ())


def _first(parts: Iterable[Found], length: int, name: str) -> Samples:
    return _values(_samples(parts, length), name)


def _prompts(parts: Iterable[Found], length: int) -> Samples:
    return [each["prompt"] / each["cold"] for each in _samples(parts, length)]


def _cells(row: Row) -> tuple[str, ...]:
    shown = _speeds if row.is_speed else _seconds
    ratio = ""
    if row.ours and row.theirs:
        mine, other = statistics.median(row.ours), statistics.median(row.theirs)
        times = mine / other if row.is_speed else other / mine
        ratio = f"{times:.0f}x" if times >= _TEN else f"{times:.2g}x"
    return row.label, shown(row.ours), shown(row.theirs), ratio


def _seconds(samples: Samples) -> str:
    if not samples:
        return _DASH
    median = statistics.median(samples)
    if median < 1:
        return _spread([1000 * each for each in samples], 0, " ms")
    return _spread(samples, 1 if median >= _TEN else 2, " s")


def _speeds(samples: Samples) -> str:
    return _spread(samples, 0 if statistics.median(samples) >= _HUNDRED else 1, "") if samples else _DASH


def _spread(samples: Samples, digits: int, unit: str) -> str:
    median = f"{statistics.median(samples):,.{digits}f}{unit}"
    return f"{median} ({min(samples):,.{digits}f}–{max(samples):,.{digits}f})" if len(samples) > 1 else median


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = False) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield f"|---|{('---:|' if numbers else '---|') * (len(columns) - 1)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', '/') for cell in row)} |"
