"""The schema of workflow files, which `agentmem run --schema` writes. docs/guides/workflows.md explains it."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field
from pydantic.json_schema import GenerateJsonSchema

from agentmem.limits import MAX_STOPS
from agentmem.validation import MAX_SCHEMA_BYTES
from gateway.api.validation import JsonObject, KeyPart, StopString, Strict, within

MAX_AGENTS: Final = 64
MAX_PHASES: Final = 64
MAX_ROUNDS: Final = 100
MAX_TURNS: Final = 2000
"""Turns of a run, if nothing stops it early."""
MAX_TEXT: Final = 16 * 1024

Name = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}$")]
NameOrRest = Annotated[str, Field(pattern=r"^(?:\*|[A-Za-z][A-Za-z0-9_-]{0,63})$")]
Names = Annotated[list[Name], Field(min_length=1, max_length=MAX_AGENTS)]
Template = Annotated[str, Field(max_length=MAX_TEXT)]
Option = Annotated[str, Field(min_length=1, max_length=64)]
Tokens = Annotated[int, Field(ge=1, le=32768)]
Listening = Literal["silent", "notes"]


def _schema(value: dict[str, Any]) -> dict[str, Any]:
    if len(schema_text(value).encode()) > MAX_SCHEMA_BYTES:
        raise ValueError(f"must have at most {MAX_SCHEMA_BYTES} bytes as JSON")
    kinds = value.get("type", "object")
    if "object" not in (kinds if isinstance(kinds, list) else [kinds]):
        raise ValueError("must be the schema of an object: its type must be object")
    return value


def schema_text(schema: dict[str, Any]) -> str:
    """Keep the properties in their order."""
    return json.dumps(schema, ensure_ascii=False)


class Sampling(Strict):
    """How to choose tokens. Without a temperature the likeliest is taken, and the run can be repeated."""

    temperature: Annotated[float, within("temperature")] = 0.0
    top_p: Annotated[float, within("top_p")] | None = None
    top_k: Annotated[int, within("top_k")] | None = None
    seed: Annotated[int, within("seed")] | None = None
    repetition_penalty: Annotated[float, within("repetition_penalty")] | None = None


class Defaults(Strict):
    """Defaults for all agents and phases."""

    model: KeyPart | None = Field(
        default=None, description="the model of agents that name none (default: the server's)"
    )
    max_tokens: Tokens = Field(default=64, description="the longest turn")
    stop: list[Annotated[StopString, Field(min_length=1)]] = Field(
        default=[], max_length=MAX_STOPS, description="texts that end a turn"
    )
    sampling: Sampling = Sampling()
    hears: Template = Field(default="${speaker}: ${text}", description="an utterance, as who hears it reads it")
    notice: Template = Field(
        default="${speaker} whispers to ${listeners}.", description="a whisper, as who does not hear it reads of it"
    )
    cue: Template = Field(
        default="It is your turn, ${agent}.", description="the prompt where there is nothing else to say"
    )
    listening: Listening = Field(default="silent", description="whether listeners answer for themselves what they hear")


class Agent(Strict):
    """An agent that takes part."""

    system: Template = Field(default="", description="the system text of a new agent")
    model: KeyPart | None = None
    persist: bool = Field(default=False, description="its memory is there before the run, if it is, and stays after it")
    id: KeyPart | None = Field(default=None, description="whose memory, with `persist` (default: its name)")
    max_tokens: Tokens | None = None
    sampling: Sampling | None = None


class Until(Strict):
    """Ends a phase before its rounds are over; looked at after each round. All that is said must hold."""

    said: Annotated[str, Field(min_length=1)] | None = Field(
        default=None, description="a text that is in what agents said in this round; case does not count"
    )
    by: Literal["any", "all"] | Name = Field(
        default="any", description="who has to have said it: any, all, or one agent"
    )
    unanimous: bool = Field(default=False, description="all votes of the phase's outcome are given, and the same")


class Vote(Strict):
    """Each votes for one of the options: the last that is named in what it said last in the phase."""

    kind: Literal["vote"]
    options: Annotated[list[Option], Field(min_length=2, max_length=32)]
    voters: Names | None = Field(default=None, description="default: all agents of the phase")
    tie: Literal["none", "first"] = Field(
        default="none", description="who wins a tie: nobody, or the first of the options"
    )
    held: bool = Field(default=False, description="hold what voters say to the options, by a JSON Schema")


class Choice(Strict):
    """Each chooses one of the options, as in a vote, but for itself."""

    kind: Literal["choice"]
    options: Annotated[list[Option], Field(min_length=2, max_length=32)]
    agents: Names | None = Field(default=None, description="default: all agents of the phase")
    held: bool = Field(default=False, description="hold what they say to the options, by a JSON Schema")


class Number(Strict):
    """Each names a number: the last in what it said last in the phase."""

    kind: Literal["number"]
    agents: Names | None = Field(default=None, description="default: all agents of the phase")


class Json(Strict):
    """One agent answers with a JSON object, and is held to its schema."""

    kind: Literal["json"]
    agent: Name
    schema_: Annotated[JsonObject, AfterValidator(_schema)] = Field(alias="schema")


class Said(Strict):
    """The last that one agent said."""

    kind: Literal["text"]
    agent: Name


Outcome = Annotated[Vote | Choice | Number | Json | Said, Field(discriminator="kind")]


class Phase(Strict):
    """Rounds of speaking."""

    name: Name
    topology: Literal["round_robin", "all_at_once", "pairs", "hub", "ring", "broadcast"] = Field(
        default="round_robin", description="who speaks when, and to whom"
    )
    agents: Annotated[list[Name], Field(min_length=1, max_length=MAX_AGENTS, description="who speaks, in this order")]
    listeners: list[Name] = Field(
        default=[], max_length=MAX_AGENTS, description="who is there and says nothing; they hear what is public"
    )
    center: Name | None = Field(default=None, description="who speaks to the others, in hub and broadcast")
    pairs: list[Annotated[list[Name], Field(min_length=2, max_length=2)]] | None = Field(
        default=None,
        max_length=MAX_AGENTS // 2,
        description="who speaks with whom, in pairs (default: neighbours in `agents`)",
    )
    channel: Literal["public", "private", "whisper"] = Field(
        default="public",
        description="who hears what is said: all, or only those for whom it is meant; a whisper is noticed",
    )
    to: dict[Name, Names] = Field(
        default={}, description="for whom what an agent says is meant, in round_robin, all_at_once and broadcast"
    )
    rounds: int = Field(default=1, ge=1, le=MAX_ROUNDS, description="how often all speak")
    opening: Template = Field(default="", description="what all agents and listeners read before the first round")
    prompts: Template | dict[NameOrRest, Template] = Field(
        default="", description="what a speaker reads before it speaks, for all or by agent; * is for those not named"
    )
    until: Until | None = Field(default=None, description="what ends the phase early")
    outcome: Outcome | None = Field(default=None, description="what the phase results in; all may know it")
    max_tokens: Tokens | None = Field(default=None, description="the longest turn of this phase")
    listening: Listening | None = Field(default=None, description="as in `defaults`, for this phase")


class Definition(Strict):
    """A workflow file."""

    workflow: Name
    description: str = ""
    variables: dict[Name, Template] = Field(default={}, description="values for templates, which a run may replace")
    defaults: Defaults = Defaults()
    agents: Annotated[dict[Name, Agent], Field(min_length=1, max_length=MAX_AGENTS, description="who takes part")]
    phases: Annotated[list[Phase], Field(min_length=1, max_length=MAX_PHASES, description="what happens, in order")]


KEYS: Final = frozenset(
    name.rstrip("_")
    for model in (Definition, Defaults, Sampling, Agent, Phase, Until, Vote, Choice, Number, Json, Said)
    for name in model.model_fields
)
"""All keys of workflow files that are not names."""


def json_schema() -> dict[str, Any]:
    made = Definition.model_json_schema(by_alias=True, schema_generator=_Generator)
    return {"$schema": _Generator.schema_dialect, **made, "title": "Agentmem workflow"}


class _Generator(GenerateJsonSchema):
    """Without titles that only repeat names, and with no more keys than the models take."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
        return False

    def dict_schema(self, schema: Any) -> dict[str, Any]:
        made = super().dict_schema(schema)
        return {**made, "additionalProperties": False} if "patternProperties" in made else made
