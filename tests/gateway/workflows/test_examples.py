"""Files that users have: the guide's, and the examples, which together show all that a file can say."""

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from gateway.workflows.definition.parser import load
from gateway.workflows.definition.schema import Definition, Outcome, Phase
from gateway.workflows.program import PhaseEnd, Program, Turn

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy" / "examples" / "workflows"
FILES = sorted(FOLDER.glob("*.yaml"))
Says = Callable[[Turn, str], str]
"""An agent's words in a turn, with all that it has heard."""


def example(name: str) -> Definition:
    return load((FOLDER / f"{name}.yaml").read_text(), {})


def play(definition: Definition, says: Says) -> tuple[list[Turn], dict[str, PhaseEnd]]:
    """All turns, and how the phases ended."""
    program, said, heard = Program(definition), dict[str, str](), dict.fromkeys(definition.agents, "")
    turns: list[Turn] = []
    ends = {}
    while (step := program.advance(said)) is not None:
        turns += step.turns
        for work in (*step.listenings, *step.turns):
            heard[work.agent] += work.message
        said = {turn.agent: says(turn, heard[turn.agent]) for turn in step.turns}
        if step.ended is not None:
            ends[step.ended.phase] = step.ended
    return turns, ends


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_it_loads_and_says_what_it_shows(file: Path) -> None:
    assert load(file.read_text(), {}).workflow == file.stem
    assert file.read_text().startswith("# ")


def test_the_guides_file_loads() -> None:
    guide = (ROOT / "docs" / "guides" / "workflows.md").read_text()
    blocks = re.findall(r"```yaml\n(workflow: .*?)```", guide, re.DOTALL)
    assert [load(block, {}).workflow for block in blocks] == ["yard"]


def test_together_they_use_all_there_is() -> None:
    assert len(FILES) == 4
    phases = [phase for file in FILES for phase in load(file.read_text(), {}).phases]
    for field in ("topology", "channel"):
        assert {getattr(phase, field) for phase in phases} == set(get_args(Phase.model_fields[field].annotation))
    union, _ = get_args(Outcome)
    assert {type(phase.outcome) for phase in phases} == {*get_args(union), type(None)}


def test_the_dilemma_has_25_turns_and_its_analyst_reads_what_is_on_record() -> None:
    turns, ends = play(
        example("prisoners-dilemma"), lambda turn, _: '"defect"' if turn.json_schema else f"I am {turn.agent}."
    )
    assert Counter(turn.agent for turn in turns) == {"warden": 8, "marco": 8, "danny": 8, "analyst": 1}
    assert [end.rounds for end in ends.values()] == [4, 4, 3, 1, 1]
    assert turns[-1].agent == "analyst"
    for part in ('"I am marco."', '"I am danny."', 'marco chose "defect"', "robbing the bank in Mill Street"):
        assert part in turns[-1].message


def test_the_review_ends_when_the_reviewer_approves() -> None:
    def says(turn: Turn, _: str) -> str:
        if turn.json_schema:
            return '{"approved": true, "issues": 0}'
        return "Approved." if "Round 2" in turn.message and turn.agent == "reviewer" else "No."

    _, ends = play(example("code-review"), says)
    assert ends["review"].rounds == 2
    assert ends["record"].outcome == {"value": {"approved": True, "issues": 0}}


def test_a_jury_that_is_split_votes_again_and_the_motion_falls() -> None:
    split = {"priya": "for", "sven": "for", "nina": "against", "tariq": "against"}
    turns, ends = play(example("debate"), lambda turn, _: f'"{split[turn.agent]}"' if turn.json_schema else "Hear me.")
    assert ends["verdict"].rounds == 3
    assert ends["verdict"].outcome["winner"] == "against"
    assert '2 for the motion, 2 against it. The winner is "against"' in turns[-1].message

    _, ends = play(example("debate"), lambda turn, _: '"for"' if turn.json_schema else "I concede.")
    assert (ends["arguments"].rounds, ends["verdict"].rounds) == (1, 1)
    assert ends["verdict"].outcome["winner"] == "for"


def test_gossip_tells_who_could_know() -> None:
    """Agents that say of what they are asked what they were told, and nothing else."""
    facts = {
        "boat": "The colour of the boat is green.",
        "locker": "The number of the locker is 417.",
        "secret": "The secret word of yuki is walnut.",
    }

    def says(turn: Turn, heard: str) -> str:
        fact = next(fact for about, fact in facts.items() if about in turn.message.splitlines()[-1])
        return fact if fact in heard else "I do not know."

    _, ended = play(example("gossip"), says)
    ends = {name: end.outcome for name, end in ended.items()}
    knowing = {name for name, colour in ends["colour"]["choices"].items() if colour is not None}
    assert knowing == {"lena", "marco", "priya"}
    assert ends["number"]["numbers"] == dict.fromkeys(("lena", "marco", "priya", "omar", "yuki"), 417) | {"nina": None}
    assert {name for name, word in ends["word"]["choices"].items() if word} == {"lena", "yuki"}
