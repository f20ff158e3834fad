"""Workflow files as definitions, or as all mistakes in them; and how these travel."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem.diagnostics import Diagnostic
from gateway.workflows.definition.parser import MalformedDefinition, _field, load
from gateway.workflows.definition.schema import MAX_TEXT
from tests.gateway.workflows.definition.marked import marked, told


def test_mistakes_are_sorted_and_those_of_the_run_come_first() -> None:
    error = MalformedDefinition([Diagnostic("b", "y", 2, 1), Diagnostic("a", "x", 1, 9), Diagnostic("c", "z")])
    assert error.violations == (("c", "z"), ("a", "line 1, column 9: x"), ("b", "line 2, column 1: y"))
    assert (error.field, error.problem) == ("c", "z")
    assert error.message == "c: z (and 2 more)"


@given(st.integers(1, 200), st.integers(0, 300))
def test_more_than_can_be_told_are_counted(count: int, length: int) -> None:
    error = MalformedDefinition([Diagnostic(f"f{i}", "x" * length, i, 1) for i in range(count)])
    told = error.violations
    assert error.to_status().ByteSize() < 6 * 1024  # 8 KiB as base64
    if told[-1].field == "definition":
        assert told[-1].problem == f"has {count - len(told) + 1} more mistakes"
        assert len(told) > 1
    else:
        assert len(told) == count


def test_fields() -> None:
    assert _field(()) == "definition"
    assert _field(("phases", 0, "prompts", "*")) == "phases[0].prompts.*"
    assert _field(("agents", "what was said", "id")) == "agents.(a name).id"
    assert len(_field(("a" * 64,) * 60)) == 201


GOOD = """
workflow: chat
variables:
  topic: boats
  about: the topic is ${topic}
defaults: &own
  max_tokens: 32
agents:
  ann: {system: "You are ${agent}; ${about}.", persist: true, id: anna}
  bob: {sampling: {temperature: 1, seed: 3}}
phases:
  - name: talk
    agents: [ann, bob]
    opening: |
      Talk. ${about}
    prompts: {ann: "Round ${round}.", "*": Answer.}
    until: {said: agreed, by: all}
    rounds: 3
  - name: decide
    agents: [ann, bob]
    prompts: You said ${said.talk.ann}
    outcome: {kind: vote, options: [yes, no]}
"""


def test_a_file_becomes_a_definition() -> None:
    made = load(GOOD, {})
    assert made.workflow == "chat"
    assert made.variables == {"topic": "boats", "about": "the topic is boats"}
    assert made.agents["bob"].sampling is not None
    assert made.agents["bob"].sampling.temperature == 1.0
    assert made.phases[0].opening == "Talk. ${about}\n"
    assert made.phases[1].outcome is not None
    assert made.phases[1].outcome.kind == "vote"


def test_variables_of_the_run_replace_the_files() -> None:
    assert load(GOOD, {"topic": "${about}"}).variables == {"topic": "${about}", "about": "the topic is ${about}"}
    assert load(GOOD, {"about": ""}).variables == {"topic": "boats", "about": ""}


def test_variables_of_the_run_that_the_file_does_not_take() -> None:
    with pytest.raises(MalformedDefinition) as caught:
        load(GOOD, {"topc": "x", "topic": "x" * (MAX_TEXT + 1), "not a name": "secret"})
    assert list(caught.value.violations) == [
        ("variables.topc", "is given for the run, but the file has no such variable; did you mean topic?"),
        ("variables.topic", f"must not be longer than {MAX_TEXT} characters"),
        ("variables.(a name)", "is given for the run, but the file has no such variable"),
    ]


SCHEMA = {
    "top": "[] #! definition | must be a mapping; {} is an empty one",
    "text": "hello #! definition | must be a mapping; {} is an empty one",
    "missing": "agents: {a: {}} #! workflow | is required #! phases | is required",
    "unknown fields": """
workflow: w
agents:
  a:
    colour: red  #! agents.a.colour | is not supported
phases:
  - agents: [a]  #! phases[0].name | is required
    speaks: x  #! phases[0].speaks | is not supported
    round: 3  #! phases[0].round | is not supported; did you mean rounds?
    workflow: w  #! phases[0].workflow | is not supported
""",
    "names": """
workflow: my workflow  #! workflow | must be a name: a letter, then at most 63 letters, digits, _ and -
agents:
  1a: {}  #! agents.1a | must be a name: a letter, then at most 63 letters, digits, _ and -
phases:
  - name: p
    agents: ["a b"]  #! phases[0].agents[0] | must be a name: a letter, then at most 63 letters, digits, _ and -
""",
    "types": """
workflow: w
agents:
  a: {max_tokens: many}  #! agents.a.max_tokens | input should be a valid integer
  b: {persist: yes}  #! agents.b.persist | must be true or false
  c:  #! agents.c | must be a mapping; {} is an empty one
phases:
  - name: p
    agents: a  #! phases[0].agents | must be a list
    rounds: 1000  #! phases[0].rounds | input should be less than or equal to 100
    prompts: {a: 1}  #! phases[0].prompts.a | must be text; in quotes, if it looks like something else
    channel: secret  #! phases[0].channel | input should be 'public', 'private' or 'whisper'
""",
    "what the worker would refuse": f"""
workflow: w
defaults:
  model: {"é" * 129}  #! defaults.model | must be at most 256 bytes of UTF-8, is 258
  stop:
    - {"é" * 128}
    - {"é" * 129}  #! defaults.stop[1] | stop strings have 1 to 256 bytes
    - ""  #! defaults.stop[2] | stop strings have 1 to 256 bytes
agents:
  a: {{persist: true, id: {"é" * 129}}}  #! agents.a.id | must be at most 256 bytes of UTF-8, is 258
  b: {{persist: true, id: ""}}  #! agents.b.id | string should have at least 1 character
  c: {{model: {"m" * 257}}}  #! agents.c.model | must be at most 256 bytes of UTF-8, is 257
phases:
  - name: p
    agents: [a, b, c]
    outcome:
      kind: json
      agent: a
      schema:
        {{title: {"é" * 33000}}}  #! phases[0].outcome.schema | must have at most 65536 bytes as JSON
  - name: q
    agents: [a, b, c]
    outcome: {{kind: json, agent: a, schema: {{type: array}}}}  #! phases[1].outcome.schema | must be the schema of an object: its type must be object
""",  # noqa: E501
    "unions": """
workflow: w
agents: {a: {}}
phases:
  - name: p
    agents: [a]
    outcome:
      kind: poll  #! phases[0].outcome.kind | is not supported here; supported are vote, choice, number, json, text
  - name: q
    agents: [a]
    outcome: {options: [x, y]}  #! phases[1].outcome.kind | is required
  - name: r
    agents: [a]
    outcome: {kind: vote, options: [x, y], tie: no}  #! phases[2].outcome.tie | input should be 'none' or 'first'
    prompts: 3  #! phases[2].prompts | must be text; in quotes, if it looks like something else
  - name: s
    agents: [a]
    outcome:
      kind: vote
      options: [true, no]  #! phases[3].outcome.options[0] | must be text; in quotes, if it looks like something else
""",
}  # fmt: skip


@pytest.mark.parametrize("text", SCHEMA.values(), ids=SCHEMA)
def test_what_has_not_the_schemas_form_is_told_with_its_line(text: str) -> None:
    assert told(text) == marked(text)


def test_mistakes_are_told_all_at_once_in_the_files_order() -> None:
    text = GOOD.replace("agents: [ann, bob]", "agents: [ann, bob, eve]").replace("${topic}", "${topics}")
    assert [(line, field) for line, field, _ in told(text)] == [
        (5, "variables.about"),
        (13, "phases[0].agents[2]"),
        (20, "phases[1].agents[2]"),
    ]


def test_texts_of_the_file_are_in_no_error() -> None:
    text = GOOD.replace("boats", "sesame").replace("Answer.", '"open sesame ${no such thing}"')
    text = text.replace("Talk.", "${sesame is open} sesame").replace("[yes, no]", "[sesame, Sesame]")
    with pytest.raises(MalformedDefinition) as caught:
        load(text.replace("said: agreed", "sad: sesame"), {"not sesame": "sesame"})
    assert "esame" not in str(caught.value.violations)
    with pytest.raises(MalformedDefinition) as caught:
        load(text, {"not sesame": "sesame"})
    assert len(caught.value.violations) == 4
    assert "esame" not in str(caught.value.violations)


@given(
    st.lists(
        st.sampled_from(
            [*GOOD.splitlines(keepends=True), "    center: ann\n", "    topology: hub\n", "    to: {ann: [bob]}\n"]
        )
        | st.text("${}[]a: \n-&*'\"", max_size=8),
        max_size=25,
    ).map("".join),
    st.dictionaries(st.sampled_from(["topic", "about", "x"]), st.text(max_size=5), max_size=2),
)
def test_no_text_raises_anything_else(text: str, variables: dict[str, str]) -> None:
    try:
        made = load(text, variables)
    except MalformedDefinition as error:
        assert error.violations  # noqa: PT017
    else:
        assert made.agents


@given(st.integers(0, len(GOOD) - 1), st.sampled_from(["", "x", "$", "{", " ", "\n", "\x00", "-", "]", "1"]))
def test_no_slip_raises_anything_else(place: int, put: str) -> None:
    try:
        load(GOOD[:place] + put + GOOD[place + 1 :], {})
    except MalformedDefinition as error:
        assert error.violations  # noqa: PT017
