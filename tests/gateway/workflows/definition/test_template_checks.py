"""Texts of a file name its variables, and what has a value and is known where the text is read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.workflows.definition.checks import Problem
from gateway.workflows.definition.parser import load
from gateway.workflows.definition.schema import MAX_TEXT
from gateway.workflows.definition.template_checks import TOO_LONG, resolved, variable_problems
from gateway.workflows.definition.templates import filled_length
from tests.gateway.workflows.definition.marked import marked, told


@pytest.mark.parametrize(
    "line",
    [
        "a: '${b}'  #! variables.a | b is none of the file's variables",
        "a: '${agent}'  #! variables.a | agent has no value in a variable",
        "a: '${said.p.ann}'  #! variables.a | said.p.ann has no value in a variable",
        "a: '${}'  #! variables.a | has a ${ that no name and } follow; write $${ for the text ${",
        "a: 'x${a}'  #! variables.a | refers to itself: a, a",
        *(f"{name}: x  #! variables.{name} | {name} has a meaning of its own in templates; choose another name"
          for name in ("agent", "phase", "round", "speaker", "listeners", "text", "said", "outcome")),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_variable_is_told_with_its_line(line: str) -> None:
    text = f"workflow: w\nagents: {{ann: {{}}}}\nphases: [{{name: p, agents: [ann]}}]\nvariables:\n  x: y\n  {line}"
    assert told(text) == marked(text)


def test_a_cycle_is_told_all_round() -> None:
    assert problems_of({"x": "${b}", "a": "${b}", "b": "${c} ${d}", "c": "${a}", "d": ""}) == [
        Problem(("variables", "b"), "refers to itself: b, c, a, b")
    ]


def test_values_of_the_run_are_texts_and_no_templates() -> None:
    values, found = resolved({"a": "<${b}>", "b": "x", "c": "${a}${a}"}, {"b": "${c} ${no"})
    assert found == []
    assert values == {"a": "<${c} ${no>", "b": "${c} ${no", "c": "<${c} ${no>" * 2}


def test_variables_do_not_grow_without_end() -> None:
    laughs = {"v0": "ha" * 10, **{f"v{i}": f"${{v{i - 1}}}" * 100 for i in range(1, 20)}}
    values, found = resolved(laughs, {})
    assert [problem.path[-1] for problem in found] == ["v2", *(f"v{i}" for i in range(5, 20, 3))][: len(found)]
    assert {problem.message for problem in found} == {TOO_LONG}
    assert max(map(len, values.values())) <= MAX_TEXT


@given(st.dictionaries(st.sampled_from("abcdef"), st.text("${}abcdef ", max_size=12), max_size=6), st.data())
def test_what_has_no_problem_is_resolved_as_often_as_it_takes(templates: dict[str, str], data: st.DataObject) -> None:
    if problems_of(templates):
        return
    given_ = (
        data.draw(st.dictionaries(st.sampled_from(sorted(templates)), st.text("${}ab", max_size=5)))
        if templates
        else {}
    )
    values, found = resolved(templates, given_)
    assert found == []
    assert list(values) == list(templates)
    for name, text in templates.items():
        assert values[name] == given_[name] if name in given_ else len(values[name]) <= filled_length(text, values)


def problems_of(templates: dict[str, str]) -> list[Problem]:
    return list(variable_problems(templates))


HEAD = """
workflow: w
variables: {topic: boats, long: %s}
agents: {ann: {}, bob: {}, cem: {}, dia: {}}
phases:
  - {name: talk, agents: [ann, bob], listeners: [cem]}
  - {name: secret, agents: [ann, bob], listeners: [cem], channel: private}
  - {name: whisper, agents: [ann, bob, cem], channel: whisper, to: {ann: [bob]}}
  - {name: pairs, topology: pairs, agents: [ann, bob, cem, dia], channel: private}
  - {name: hub, topology: hub, center: ann, agents: [ann, bob, cem], channel: private}
  - {name: ring, topology: ring, agents: [ann, bob, cem], channel: private}
  - {name: show, topology: broadcast, center: ann, agents: [ann, bob, cem]}
  - {name: vote, agents: [ann, bob], outcome: {kind: vote, options: [yes, plan B, v1.0], voters: [bob]}}
  - {name: choice, agents: [ann, bob], outcome: {kind: choice, options: [yes, no]}}
  - {name: number, agents: [ann, bob], outcome: {kind: number, agents: [ann]}}
  - {name: json, agents: [ann], outcome: {kind: json, agent: ann, schema: {properties: {a: {}, b.c: {}}}}}
  - {name: any, agents: [ann], outcome: {kind: json, agent: ann, schema: {type: object}}}
  - {name: text, agents: [ann], outcome: {kind: text, agent: ann}}
""" % ("x" * 9000)

VOTES = "winner, tally.OPTION, votes.AGENT and unanimous"
NO_VALUE = "has no value here"


def prompt(reference: str, problem: str, agent: str = "dia") -> str:
    """A prompt of one agent, in a last phase."""
    return f"  - {{name: last, agents: [{agent}], prompts: 'See ${{{reference}}}'}}  #! phases[13].prompts | {problem}"


def no_field(phase: str, field: str, fields: str) -> str:
    return prompt(f"outcome.{phase}.{field}", f"outcome.{phase}.{field} is no field of that outcome; it has {fields}")


def unheard(who: str, speaker: str, phase: str) -> str:
    return f"tells {who} what {speaker} said in {phase} to others"


MISTAKEN = [
    prompt("tpic", "tpic is none of the file's variables; did you mean topic?"),
    prompt("topic.x", "topic.x is none of the file's variables; did you mean topic?"),
    prompt("a.plan B", "(a name) is none of the file's variables"),
    prompt("text", f"text {NO_VALUE}"),
    prompt("speaker", f"speaker {NO_VALUE}"),
    prompt("listeners", f"listeners {NO_VALUE}"),
    prompt("agent.name", "agent has no parts: agent.name"),
    prompt("outcome", "outcome must be outcome.PHASE.FIELD"),
    prompt("outcome.vote", "outcome.vote must be outcome.PHASE.FIELD"),
    prompt("said.talk", "said.talk must be said.PHASE.AGENT"),
    prompt("outcome.none.winner", "outcome.none.winner is of no earlier phase"),
    prompt("outcome.last.winner", "outcome.last.winner is of no earlier phase"),
    prompt("said.last.dia", "said.last.dia is of no earlier phase"),
    prompt("outcome.talk.winner", "outcome.talk.winner is of a phase that has no outcome"),
    prompt("said.talk.dia", "dia does not speak in talk"),
    prompt("said.talk.cem", "cem does not speak in talk", "cem"),
    prompt("said.talk.ann.x", "ann.x does not speak in talk", "bob"),
    prompt("said.show.bob", "bob does not speak in show", "bob"),
    *(no_field("vote", field, VOTES) for field in ("tally", "tally.no", "votes.ann", "winner.x", "text")),
    prompt("outcome.vote.tally.plan C", f"(a name) is no field of that outcome; it has {VOTES}"),
    no_field("choice", "choices.cem", "choices.AGENT"),
    no_field("choice", "winner", "choices.AGENT"),
    no_field("number", "numbers.bob", "numbers.AGENT and mean"),
    no_field("number", "tally.yes", "numbers.AGENT and mean"),
    no_field("json", "value", "value.KEY, of the keys that its schema names"),
    no_field("json", "value.b", "value.KEY, of the keys that its schema names"),
    no_field("any", "value", "value.KEY, of the keys that its schema names"),
    no_field("text", "value", "text"),
    # Who heard what.
    prompt("said.talk.ann", unheard("dia", "ann", "talk")),
    prompt("said.secret.ann", unheard("cem", "ann", "secret"), "cem"),
    prompt("said.secret.ann", unheard("cem", "ann", "secret"), "bob, cem"),
    prompt("said.whisper.ann", unheard("cem", "ann", "whisper"), "cem"),
    prompt("said.pairs.ann", unheard("cem", "ann", "pairs"), "cem"),
    prompt("said.hub.ann", unheard("bob", "ann", "hub"), "bob"),
    prompt("said.hub.bob", unheard("cem", "bob", "hub"), "cem"),
    prompt("said.ring.ann", unheard("cem", "ann", "ring"), "cem"),
    prompt("said.show.ann", unheard("dia", "ann", "show")),
    """
  - name: last
    agents: [ann]
    listeners: [cem]
    opening: "${said.secret.ann}"  #! phases[13].opening | tells cem what ann said in secret to others
""",
    """
  - name: last
    agents: [ann]
    opening: "${round}"  #! phases[13].opening | round has no value here
""",
    """
  - name: last
    agents: [ann, bob, cem]
    prompts:
      ann: "${said.secret.bob}"
      cem: "${said.secret.bob}"  #! phases[13].prompts.cem | tells cem what bob said in secret to others
      "*": "${said.secret.ann}"
""",
    """
  - name: last
    agents: [ann, bob, cem]
    prompts:
      ann: "${said.secret.bob}"
      "*": "${said.secret.ann}"  #! phases[13].prompts.* | tells cem what ann said in secret to others
""",
    """
  - name: last
    agents: [ann]
    prompts: "${bad name}"  #! phases[13].prompts | has a ${ that no name and } follow; write $${ for the text ${
""",
    """
  - name: last
    agents: [ann]
    prompts: "${long} ${long}"  #! phases[13].prompts | must not be longer than 16384 characters, variables filled in
""",
]


@pytest.mark.parametrize("phase", MISTAKEN)
def test_what_is_wrong_with_a_prompt_is_told_with_its_line(phase: str) -> None:
    text = HEAD + phase
    assert told(text) == marked(text)


@pytest.mark.parametrize(
    ("agent", "text"),
    [
        ("dia", "${topic} ${agent} ${phase} ${round} $5 $${not this}"),
        ("dia", "${outcome.vote.winner} ${outcome.vote.unanimous} ${outcome.vote.votes.bob}"),
        ("dia", "${outcome.vote.tally.yes} ${outcome.vote.tally.plan B} ${outcome.vote.tally.v1.0}"),
        ("dia", "${outcome.choice.choices.ann} ${outcome.number.numbers.ann} ${outcome.number.mean}"),
        (
            "dia",
            "${outcome.json.value.a} ${outcome.json.value.a.x.y} ${outcome.json.value.b.c} ${outcome.any.value.what}",
        ),
        ("dia", "${outcome.text.text} ${said.pairs.cem} ${said.pairs.dia}"),
        ("ann, bob", "${said.talk.ann} ${said.secret.ann} ${said.secret.bob} ${said.whisper.ann} ${said.pairs.bob}"),
        ("cem", "${said.talk.ann} ${said.whisper.bob} ${said.show.ann} ${said.ring.bob}"),
        ("ann", "${said.hub.ann} ${said.hub.bob} ${said.hub.cem}"),
        ("bob", "${said.hub.bob} ${said.ring.ann}"),
    ],
)
def test_what_prompts_may_name(agent: str, text: str) -> None:
    assert load(f"{HEAD}  - {{name: last, agents: [{agent}], prompts: '{text}', opening: ''}}\n", {})


OTHERS = {
    "hears": """
workflow: w
defaults:
  hears: "${speaker} ${text} ${agent} ${listeners} ${phase}"  #! defaults.hears | phase has no value here
  notice: "${speaker} ${agent} ${listeners} ${text}"  #! defaults.notice | text has no value here
  cue: "${agent} ${phase} ${round} ${outcome.p.text}"  #! defaults.cue | outcome.p.text has no value here
agents:
  ann:
    system: "${agent} ${said.p.ann}"  #! agents.ann.system | said.p.ann has no value here
  bob:
    system: "${phase}"  #! agents.bob.system | phase has no value here
phases:
  - {name: p, agents: [ann, bob], outcome: {kind: text, agent: ann}}
""",
    "a phase that comes later": """
workflow: w
agents: {ann: {}}
phases:
  - {name: p, agents: [ann], prompts: "${outcome.q.text}"}  #! phases[0].prompts | outcome.q.text is of no earlier phase
  - {name: q, agents: [ann], outcome: {kind: text, agent: ann}}
""",
    "one thing too often": f"""
workflow: w
variables: {{v: x}}
defaults:
  hears: "{"${text}${speaker}${v}" * 17}"  #! defaults.hears | names text more than 16 times #! defaults.hears | names speaker more than 16 times
agents: {{ann: {{}}}}
phases:
  - {{name: p, agents: [ann], prompts: "{"${agent}" * 16}", outcome: {{kind: text, agent: ann}}}}
  - name: q
    agents: [ann]
    prompts: "{"${said.p.ann}" * 20}"  #! phases[1].prompts | names said.p.ann more than 16 times
    opening: "{"${outcome.p.text}" * 17}"  #! phases[1].opening | names outcome.p.text more than 16 times
""",  # noqa: E501
}


@pytest.mark.parametrize("text", OTHERS.values(), ids=OTHERS)
def test_what_is_wrong_with_other_texts_is_told_with_its_line(text: str) -> None:
    assert told(text) == marked(text)


def test_a_text_may_be_as_long_as_the_schema_says_with_its_variables() -> None:
    text = "{workflow: w, variables: {v: ''}, agents: {a: {system: '${v}'}}, phases: [{name: p, agents: [a]}]}"
    assert load(text, {"v": "x" * MAX_TEXT}).variables["v"] == "x" * MAX_TEXT
