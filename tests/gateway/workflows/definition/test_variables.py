import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.workflows.definition.mistakes import MAX_MISTAKES
from gateway.workflows.definition.problem import Problem
from gateway.workflows.definition.schema import MAX_TEXT
from gateway.workflows.definition.variables import TOO_LONG, filled_length, resolved, variable_problems
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


def test_of_one_variable_no_more_is_found_than_can_be_told() -> None:
    assert len(variable_problems({"a": "${" * 8000, "b": "${x}" * 4000, "c": "${x}"})) == 2 * MAX_MISTAKES + 1


def test_cycles_are_told_once_from_the_first_variable_round() -> None:
    cyclic = {"x": "${b}", "a": "${b}", "b": "${c} ${d}", "c": "${a}", "d": "", "e": "${e}"}
    assert variable_problems(cyclic) == [
        Problem(("variables", "a"), "refers to itself: a, b, c, a"),
        Problem(("variables", "e"), "refers to itself: e, e"),
    ]


def test_many_cycles_are_told_in_time() -> None:
    every = {f"v{i}": "".join(f"${{v{j}}}" for j in range(30)) for i in range(30)}
    assert 0 < len(variable_problems(every)) <= 50


def test_values_of_the_run_are_texts_and_no_templates() -> None:
    values, found = resolved({"a": "<${b}>", "b": "x", "c": "${a}${a}"}, {"b": "${c} ${no"})
    assert found == []
    assert values == {"a": "<${c} ${no>", "b": "${c} ${no", "c": "<${c} ${no>" * 2}


def test_variables_do_not_grow_without_end() -> None:
    laughs = {"v0": "ha" * 10, **{f"v{i}": f"${{v{i - 1}}}" * 100 for i in range(1, 20)}}
    values, found = resolved(laughs, {})
    assert [problem.path[-1] for problem in found] == ["v2", *(f"v{i}" for i in range(5, 20, 3))][: len(found)]
    assert {problem.problem for problem in found} == {TOO_LONG}
    assert max(map(len, values.values())) <= MAX_TEXT


@given(st.dictionaries(st.sampled_from("abcdef"), st.text("${}abcdef ", max_size=12), max_size=6), st.data())
def test_what_has_no_problem_is_resolved_as_often_as_it_takes(templates: dict[str, str], data: st.DataObject) -> None:
    if variable_problems(templates):
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
