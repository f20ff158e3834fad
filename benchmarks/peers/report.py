"""Medians with their ratios to agentmem, and problems. Pure."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.peers.scenarios import SPEED
from benchmarks.results import summary
from benchmarks.tables import Table, milliseconds, spread

OURS = "agentmem"
TITLES = {
    "growing": "A chat that grows",
    "restart": "SIGKILL and start in the middle of a chat",
    "together": "Agents in turn and at once",
    "round-robin": "More agents than memory, round robin",
}
_RATIO = "agentmem as fast"
Samples = Mapping[str, Sequence[Mapping[str, Any]]]


def values(samples: Samples, server: str, name: str) -> list[float | None]:
    return [value for sample in samples.get(server, ()) for value in sample["figures"].get(name, ())]


def ratio(samples: Samples, server: str, name: str) -> float | None:
    pairs = zip(values(samples, OURS, name), values(samples, server, name), strict=False)
    found = [
        mine / other if name.endswith(SPEED) else other / mine
        for mine, other in pairs
        if mine is not None and other is not None
    ]
    return statistics.median(found) if found else None


def tables(figures: dict[str, Any]) -> list[Table]:
    names = list(figures["servers"])
    found = [_compared(figures)]
    for scenario, samples in figures["scenarios"].items():
        rows = []
        labels = dict.fromkeys(label for each in samples.values() for one in each for label in one["figures"])
        for label in labels:
            cells = [_cell(values(samples, name, label), label) for name in names]
            ratios = [ratio(samples, name, label) for name in names if name != OURS]
            shown = ("" if each is None else f"{each:.2f}x" for each in ratios)
            rows.append((label, *cells, *(shown if OURS in names else ())))
        columns = ("", *names, *(f"{_RATIO} as {name}" for name in names if name != OURS and OURS in names))
        found.append(Table(TITLES[scenario], columns, rows, _note(figures, scenario)))
    return found


def _compared(figures: dict[str, Any]) -> Table:
    rows = [
        (name, told, f"{statistics.median(figures['starts'][name]):.2f} s") for name, told in figures["servers"].items()
    ]
    rows += [(name, f"not here: {why}", "") for name, why in figures["missing"].items()]
    asked = figures["asked"]
    note = (
        f"{asked['model']}, {asked['threads']} threads each, one server asked at a time by the same client over "
        f"OpenAI's API, in turns. Greedy answers of {asked['generated']} tokens, messages of {asked['new']}, and "
        f"{asked['context']} that an agent knows at first. {_RATIO.capitalize()} as another: the median of the ratios "
        "of values that were measured one after the other; above 1 agentmem is faster."
    )
    return Table("What is compared", ("server", "version and weights", "first start until healthy"), rows, note)


def _cell(found: Sequence[float | None], label: str) -> str:
    good = [value for value in found if value is not None]
    failed = f"{len(found) - len(good)} of {len(found)} failed" if len(good) < len(found) else ""
    if not good:
        return failed
    shown = spread(summary(good), 1) if label.endswith(SPEED) else milliseconds(summary(good))
    return f"{shown}, {failed}" if failed else shown


def _note(figures: dict[str, Any], scenario: str) -> str:
    asked, samples = figures["asked"], figures["scenarios"][scenario]
    told = {
        "growing": f"{asked['turns']} turns of one chat; what it knows at first is computed in turn 1.",
        "restart": "All of a server's processes are killed; what it kept is what it finds again.",
        "together": f"{asked['agents']} agents that share nothing; two turns of each, once.",
        "round-robin": f"Memory holds the KV of {asked['holds']} of {asked['agents']} agents, in each server's own "
        f"format; {asked['rounds']} rounds after the first.",
    }[scenario]
    reused = [f"{name} {_reused(each)}" for name, each in samples.items() if _reused(each)]
    wrong = [
        f"{name}: {problem} ({count})"
        for name, each in samples.items()
        for problem, count in Counter(problem for sample in each for problem in sample["problems"]).items()
    ]
    return " ".join(
        [
            told,
            *([f"Of the prompts' tokens reused, as servers say: {', '.join(reused)}."] if reused else []),
            *([f"Not as it should be: {'; '.join(wrong)}."] if wrong else []),
        ]
    )


def _reused(samples: Sequence[Mapping[str, Any]]) -> str:
    turns = [turn for sample in samples for turn in sample["turns"] if turn["cached"] is not None]
    prompts = sum(turn["prompt"] for turn in turns)
    return f"{sum(turn['cached'] for turn in turns) / prompts:.0%}" if prompts else ""
