"""Structured results, read from what agents said last in a phase. Pure.

vote     {"winner": option or null, "tally": {option: votes}, "votes": {agent: option or null}, "unanimous": bool}
choice   {"choices": {agent: option or null}}
number   {"numbers": {agent: number or null}, "mean": number or null}
json     {"value": object or null}
text     {"text": text or null}
"""

import json
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

from agentmem import jsontext
from agentmem.errors import InvalidArgument
from gateway.workflows.definition.schema import Choice, Json, Number, Outcome, Phase, Vote, schema_text

_NUMBER: Final = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?![\w])")


def read(outcome: Outcome, phase: Phase, last: Mapping[str, str]) -> dict[str, Any]:
    """Agents that said nothing have null."""
    match outcome:
        case Vote():
            return _vote(outcome, {name: option_in(last.get(name, ""), outcome) for name in asked(outcome, phase)})
        case Choice():
            return {"choices": {name: option_in(last.get(name, ""), outcome) for name in asked(outcome, phase)}}
        case Number():
            numbers = {name: _number(last.get(name, "")) for name in asked(outcome, phase)}
            named = [number for number in numbers.values() if number is not None]
            return {"numbers": numbers, "mean": float(statistics.mean(named)) if named else None}
        case Json():
            return {"value": _object(last.get(outcome.agent, ""))}
        case _:
            return {"text": last.get(outcome.agent)}


def asked(outcome: Outcome, phase: Phase) -> Sequence[str]:
    match outcome:
        case Vote():
            named = outcome.voters
        case Choice() | Number():
            named = outcome.agents
        case _:
            named = [outcome.agent]
    return phase.agents if named is None else named


def held_to(outcome: Outcome | None, phase: Phase, agent: str) -> str:
    """Return the JSON Schema of what an agent says in a phase; "" where it is free."""
    if outcome is None or agent not in asked(outcome, phase):
        return ""
    match outcome:
        case Vote() | Choice() if outcome.held:
            return schema_text({"type": "string", "enum": outcome.options})
        case Json():
            return schema_text(outcome.schema_)
        case _:
            return ""


def option_in(text: str, outcome: Vote | Choice) -> str | None:
    """Return the last option that a text names as words of their own, whatever their case."""
    found = {
        match.end(): option
        for option in sorted(outcome.options, key=len)  # of two that end together the longer is meant
        for match in re.finditer(rf"(?<!\w){re.escape(option)}(?!\w)", text, re.IGNORECASE)
    }
    return found[max(found)] if found else None


def _vote(outcome: Vote, votes: dict[str, str | None]) -> dict[str, Any]:
    tally = {option: sum(vote == option for vote in votes.values()) for option in outcome.options}
    most = max(tally.values())
    first = [option for option in outcome.options if tally[option] == most]
    wins = most > 0 and (len(first) == 1 or outcome.tie == "first")
    unanimous = None not in votes.values() and len(set(votes.values())) == 1
    return {"winner": first[0] if wins else None, "tally": tally, "votes": votes, "unanimous": unanimous}


def _number(text: str) -> float | int | None:
    found = _NUMBER.findall(text)
    if not found:
        return None
    number = float(found[-1])
    if not math.isfinite(number):
        return None
    return int(number) if number.is_integer() else number


def _object(text: str) -> dict[str, Any] | None:
    try:
        value: dict[str, Any] = jsontext.parse("", text, dict)
        json.dumps(value, allow_nan=False)
    except (InvalidArgument, ValueError):  # cut off by max_tokens or the context's end, or not finite
        return None
    return value if jsontext.shallow({"value": value}) else None
