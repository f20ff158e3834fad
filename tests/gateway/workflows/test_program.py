"""The program: who reads what, when, and how phases end. What agents say is made up by the tests."""

import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from agentmem.errors import FailedPrecondition
from gateway.workflows.definition.schema import Definition
from gateway.workflows.definition.templates import MAX_FILLED
from gateway.workflows.inboxes import MAX_UNREAD
from gateway.workflows.program import Program, Step
from tests.gateway.workflows.files import definition

ROUND = {"agents": ["a", "b", "c"]}


def play(workflow: Definition, say: Callable[[str, int], str] = lambda name, place: f"{name}{place}") -> list[Step]:
    """All steps; `say` says what an agent says at a place."""
    program, said, steps = Program(workflow), dict[str, str](), []
    while (step := program.advance(said)) is not None:
        steps.append(step)
        said = {turn.agent: say(turn.agent, step.place) for turn in step.turns}
    return steps


def readings(steps: list[Step]) -> dict[str, list[str]]:
    """Return each agent's messages in order, of its listenings and of its turns."""
    read = defaultdict(list)
    for step in steps:
        for each in (*step.listenings, *step.turns):
            read[each.agent].append(each.message)
    return dict(read)


def lines(steps: list[Step]) -> dict[str, list[str]]:
    """Return the lines each agent reads."""
    return {name: "\n".join(messages).split("\n") for name, messages in readings(steps).items()}


def test_agents_hear_in_their_own_prompt_what_was_said_before() -> None:
    steps = play(definition({**ROUND, "prompts": {"a": "begin", "*": "go on ${agent} ${round} ${phase}"}}))
    assert [(turn.agent, turn.message) for step in steps for turn in step.turns] == [
        ("a", "begin"),
        ("b", "a: a0\ngo on b 1 p1"),
        ("c", "b: b1\ngo on c 1 p1"),
    ]
    # c takes in what a said while b speaks; at the end all take in what is left.
    assert [(step.place, each.agent, each.message) for step in steps for each in step.listenings] == [
        (1, "c", "a: a0"),
        (2, "a", "b: b1\nc: c2"),
        (2, "b", "c: c2"),
    ]


def test_who_has_nothing_to_read_gets_a_cue() -> None:
    steps = play(definition({"agents": ["a", "b"], "topology": "all_at_once"}, defaults={"cue": "go, ${agent}!"}))
    assert [turn.message for turn in steps[0].turns] == ["go, a!", "go, b!"]


def test_everything_heard_is_read_once_and_in_order() -> None:
    steps = play(
        definition({**ROUND, "rounds": 3}, {**ROUND, "topology": "all_at_once"}, {**ROUND, "topology": "ring"})
    )
    for name, read in lines(steps).items():
        said = [
            f"{turn.agent}: {turn.agent}{step.place}"
            for step in steps
            for turn in step.turns
            if name in turn.audience.listeners
        ]
        assert [line for line in read if ":" in line] == said


@pytest.mark.parametrize("seed", range(40))
def test_no_word_reaches_anybody_who_is_not_meant_to_hear_it(seed: int) -> None:
    """Private and whispered words of random workflows, against who is meant by a reading of the topology of its own."""
    dice = random.Random(seed)
    names = ["a", "b", "c", "d"]
    topologies = ["round_robin", "all_at_once", "pairs", "hub", "ring", "broadcast"]
    phases = []
    for _ in range(dice.randint(1, 4)):
        topology = dice.choice(topologies)
        agents = dice.sample(names, 4 if topology == "pairs" else dice.randint(2, 4))
        listeners = [name for name in names if name not in agents and dice.random() < 0.5]
        centered = {"center": agents[-1]} if topology in ("hub", "broadcast") else {}
        phases.append(
            {
                "agents": agents,
                "topology": topology,
                "listeners": listeners,
                "channel": dice.choice(["public", "private", "whisper"]),
                "rounds": dice.randint(1, 2),
                "listening": dice.choice(["silent", "notes"]),
                **centered,
            }
        )
    workflow = definition(*phases, agents={name: {} for name in names})
    steps = play(workflow, lambda name, place: f"{name}-{place}-secret")
    read = {name: " ".join(messages) for name, messages in readings(steps).items()}
    for step in steps:
        if not step.turns:
            continue
        phase = next(each for each in phases if f"p{phases.index(each) + 1}" == step.phase)
        for turn in step.turns:
            others = {*phase["agents"], *phase["listeners"]} - {turn.agent}
            agents = phase["agents"]
            meant = set(agents) - {turn.agent}
            if phase["topology"] == "pairs":
                meant = {agents[agents.index(turn.agent) ^ 1]}
            elif phase["topology"] == "ring":
                meant = {agents[(agents.index(turn.agent) + 1) % len(agents)]}
            elif phase["topology"] == "hub" and turn.agent == phase["center"]:
                meant = {next(each for each in steps if each.place == step.place + 1).turns[0].agent}
            elif phase["topology"] == "hub":
                meant = {phase["center"]}
            hears = others if phase["channel"] == "public" else meant
            for name in names:
                heard = f"{turn.agent}: {turn.agent}-{step.place}-secret" in read.get(name, "")
                assert heard == (name in hears), (name, turn, phase)
                noticed = f"{turn.agent} whispers to {', '.join(turn.audience.listeners)}." in read.get(name, "")
                if phase["channel"] == "whisper" and name in others - meant:
                    assert noticed


def test_an_opening_is_read_by_all_who_are_there() -> None:
    steps = play(
        definition({"agents": ["a", "b"], "listeners": ["c"], "opening": "in the yard, ${agent}", "channel": "private"})
    )
    assert {name: read[0] for name, read in lines(steps).items()} == {
        name: f"in the yard, {name}" for name in ("a", "b", "c")
    }


def test_notes_are_taken_of_each_utterance_at_once() -> None:
    steps = play(definition({**ROUND, "topology": "all_at_once", "rounds": 2, "listening": "notes"}))
    assert [(each.agent, each.message, each.notes) for each in steps[1].listenings] == [
        ("a", "b: b0", True),
        ("a", "c: c0", True),
        ("b", "a: a0", True),
        ("b", "c: c0", True),
        ("c", "a: a0", True),
        ("c", "b: b0", True),
    ]
    assert [turn.message for turn in steps[1].turns] == [f"It is your turn, {name}." for name in "abc"]


def test_new_agents_are_introduced_first_and_only_those_who_take_part() -> None:
    agents = {"a": {"system": "You are ${agent} of ${town}."}, "z": {"system": "nobody"}}
    steps = play(definition({"agents": ["a", "b"]}, agents=agents, variables={"town": "Ulm"}))
    assert [(each.agent, each.role, each.message) for each in steps[0].listenings] == [
        ("a", "system", "You are a of Ulm.")
    ]
    assert (steps[0].place, steps[0].turns) == (-1, ())


@pytest.mark.parametrize(
    ("until", "said", "rounds"),
    [
        ({"said": "AGREED"}, {("b", 2): "yes, agreed!"}, 2),
        ({"said": "agreed", "by": "all"}, {(name, n): "agreed" for name in "ab" for n in (1, 2)}, 4),
        ({"said": "agreed", "by": "all"}, {(name, 3): "agreed" for name in "abc"}, 3),
        ({"said": "agreed", "by": "a"}, {("b", 1): "agreed", ("a", 2): "agreed"}, 2),
        ({"said": "agreed", "by": "a"}, {("b", 1): "agreed"}, 4),
        (None, {(name, n): "agreed" for name in "abc" for n in (1, 2, 3, 4)}, 4),
        ({"unanimous": True}, {(name, n): "yes" for name in "abc" for n in (1, 2) if (name, n) != ("c", 1)}, 2),
        ({"unanimous": True, "said": "stop"}, {(name, n): "yes" for name in "abc" for n in (1, 2)}, 4),
    ],
)
def test_what_ends_a_phase(until: Any, said: dict[tuple[str, int], str], rounds: int) -> None:
    workflow = definition(
        {**ROUND, "rounds": 4, "until": until, "outcome": {"kind": "vote", "options": ["yes", "no"]}}, ROUND
    )
    steps = play(workflow, lambda name, place: said.get((name, place // 3 + 1), "hm"))
    assert next(step.ended.rounds for step in steps if step.ended) == rounds
    after = next(step for step in steps if step.phase == "p2")
    assert after.place == 12, "places are those of the schedule, whatever was left out"


def test_a_phase_tells_the_later_ones_what_came_of_it() -> None:
    vote = {"kind": "vote", "options": ["yes", "no"], "voters": ["b", "c"]}
    workflow = definition(
        {**ROUND, "outcome": vote},
        {
            "agents": ["a"],
            "prompts": "${outcome.p1.winner} by ${outcome.p1.tally.yes}, b: ${outcome.p1.votes.b}, ${said.p1.c}",
            "outcome": {"kind": "text", "agent": "a"},
        },
    )
    steps = play(workflow, lambda name, place: " yes " if name != "a" else "A")
    assert steps[-2].turns[0].message == "yes by 2, b: yes, yes"
    assert [step.ended.outcome for step in steps if step.ended] == [
        {"winner": "yes", "tally": {"yes": 2, "no": 0}, "votes": {"b": "yes", "c": "yes"}, "unanimous": True},
        {"text": "A"},
    ]


LONG = MAX_FILLED // 16 + 1


@pytest.mark.parametrize(
    ("phases", "arguments", "told"),
    [
        (
            [{"agents": ["a", "b"]}],
            {"defaults": {"hears": "${text}" * 16}},
            "defaults.hears, as b would read it of a in",
        ),
        ([ROUND, {**ROUND, "opening": "${said.p1.a}" * 16}], {}, "the opening of phase p2, as a would read it,"),
        ([ROUND, {**ROUND, "prompts": {"b": "${said.p1.a}" * 16}}], {}, "the prompt of b in phase p2"),
        (
            [
                {**ROUND, "outcome": {"kind": "text", "agent": "a"}},
                {**ROUND, "prompts": {"b": "${outcome.p1.text}" * 16}},
            ],
            {},
            "the prompt of b in phase p2",
        ),
    ],
    ids=["hears", "opening", "said", "outcome"],
)
def test_what_was_said_is_filled_in_only_within_bounds(phases: Any, arguments: Any, told: str) -> None:
    workflow = definition(*phases, **arguments)
    play(workflow, lambda name, place: "x" * (LONG - 1 if name == "a" and place == 0 else 1))
    with pytest.raises(FailedPrecondition) as caught:
        play(workflow, lambda name, place: "x" * (LONG if name == "a" and place == 0 else 1))
    assert caught.value.message.startswith(told)
    assert f"more than {MAX_FILLED} characters" in caught.value.message


def test_what_one_agent_has_to_read_has_a_bound() -> None:
    workflow = definition({"agents": ["a", "b"], "listeners": ["c"], "rounds": 4}, defaults={"hears": "${text}"})
    text = "x" * (MAX_UNREAD // 8 - 1)  # c reads all eight when the phase is over, a line each
    assert [len(read) for read in readings(play(workflow, lambda name, place: text))["c"]] == [MAX_UNREAD - 1]
    with pytest.raises(FailedPrecondition) as caught:
        play(workflow, lambda name, place: text + "x")
    assert caught.value.message.startswith(f"c would have more than {MAX_UNREAD} characters to read")
    assert "phase p1" in caught.value.message


def test_limits_and_schemas_of_turns() -> None:
    workflow = definition(
        {"agents": ["a", "b"], "max_tokens": 7, "outcome": {"kind": "choice", "options": ["x", "y"], "held": True}},
        {"agents": ["a", "b"]},
        agents={"a": {"max_tokens": 9}},
        defaults={"max_tokens": 11},
    )
    turns = [turn for step in play(workflow) for turn in step.turns]
    assert [turn.max_tokens for turn in turns] == [7, 7, 9, 11]
    assert [bool(turn.json_schema) for turn in turns] == [True, True, False, False]


def test_it_is_a_function_of_what_was_said() -> None:
    workflow = definition({**ROUND, "rounds": 2}, {**ROUND, "topology": "hub", "center": "b", "channel": "whisper"})
    assert play(workflow) == play(workflow)
