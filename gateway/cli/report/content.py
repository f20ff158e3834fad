"""What a report of a run says, as data. Pure; texts are as agents said them, but for control characters."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.cli.run.state import Part, Run, Step
from gateway.cli.run.totals import Totals, add_up
from gateway.cli.run.transcript import heard, outcome_rows, state_name
from gateway.cli.text import iso_time, printable
from gateway.cli.turn_line import match_name, tiers_of


@dataclass(frozen=True)
class Utterance:
    """What an agent said, or noted for itself, and who heard it."""

    agent: str
    noted: bool
    text: str
    audience: str


@dataclass(frozen=True)
class Round:
    """A round of a phase; 0 is what was before the first."""

    number: int
    kind: str
    agents: str
    utterances: list[Utterance]


@dataclass(frozen=True)
class Chapter:
    """A phase."""

    name: str
    rounds: list[Round]
    outcome: list[tuple[str, str]]


@dataclass(frozen=True)
class Row:
    """A step, in numbers."""

    phase: str
    round: int
    agent: str
    kind: str
    match: str
    tiers: str
    prompt: int
    reused: int
    prefilled: int
    first_token: str
    generated: int
    replayed: bool


@dataclass(frozen=True)
class Content:
    """A report."""

    name: str
    facts: list[tuple[str, str]]
    agents: list[tuple[str, str, str, str]]
    """Name, memory, model, and whether it stays."""
    chapters: list[Chapter]
    rows: list[Row]
    totals: Totals


def content_of(run: Run) -> Content:
    """The report of what `run` was told so far."""
    workflow = run.workflow
    facts = {
        "run": workflow.workflow_id,
        "state": state_name(workflow),
        "error": workflow.error,
        "started": iso_time(workflow.create_time) or "",
        "last turn": iso_time(workflow.update_time) or "",
    }
    return Content(
        name=printable(workflow.name),
        facts=[(name, printable(value)) for name, value in facts.items() if value],
        agents=[
            (
                printable(member.name),
                printable(member.key.agent_id),
                printable(member.key.model_id),
                "yes" if member.persists else "no",
            )
            for member in run.members.values()
        ],
        chapters=[_chapter(part) for part in run.parts.values() if part.rounds or any(s.text for s in part.steps)],
        rows=[_row(step) for step in run.steps()],
        totals=add_up(run),
    )


def _chapter(part: Part) -> Chapter:
    kinds = {began.round: (f"{began.channel}, {began.topology}", began.agents) for began in part.rounds}
    said: dict[int, list[Utterance]] = {number: [] for number in sorted(kinds)}
    for step in part.steps:
        if step.spoke or step.text:
            said.setdefault(step.told.round, []).append(_utterance(step))
    rounds = []
    for number in sorted(said):
        kind, agents = kinds.get(number, ("", ()))
        rounds.append(Round(number, printable(kind), ", ".join(map(printable, agents)), said[number]))
    outcome = outcome_rows(part.outcome.outcome_json) if part.outcome is not None else []
    return Chapter(printable(part.name), rounds, outcome)


def _utterance(step: Step) -> Utterance:
    audience = heard(step.heard) if step.heard is not None else ""
    return Utterance(printable(step.told.agent_id), not step.spoke, printable(step.text, keep="\n"), audience)


def _row(step: Step) -> Row:
    told = step.told
    first = told.timings.time_to_first_token.ToTimedelta().total_seconds()
    return Row(
        phase=printable(told.phase),
        round=told.round,
        agent=printable(told.agent_id),
        kind="turn" if step.spoke else "note" if step.text else "listening",
        match=match_name(told.cache).upper(),
        tiers=tiers_of(told.usage.cached),
        prompt=told.usage.prompt_tokens,
        reused=step.reused,
        prefilled=step.prefilled,
        first_token=f"{first * 1000:,.0f} ms" if told.usage.completion_tokens else "",
        generated=told.usage.completion_tokens,
        replayed=told.replayed,
    )
