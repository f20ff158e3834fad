from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem.diagnostics import Diagnostic, FileError, TomlFile, did_you_mean
from agentmem.errors import Violation


@pytest.mark.parametrize(
    ("diagnostic", "line", "violation"),
    [
        (Diagnostic("a.b", "is wrong", 3, 4), "f:3:4: a.b: is wrong", Violation("a.b", "line 3, column 4: is wrong")),
        (Diagnostic("a", "x: y\nz", 1, 20), "f:1:20: a: x: y\nz", Violation("a", "line 1, column 20: x: y\nz")),
        (Diagnostic("a", "is wrong"), "f: a: is wrong", Violation("a", "is wrong")),
        (Diagnostic("", "is empty"), "f: is empty", Violation("", "is empty")),
    ],
)  # fmt: skip
def test_a_diagnostic_is_a_line_and_travels_as_a_violation(
    diagnostic: Diagnostic, line: str, violation: Violation
) -> None:
    assert diagnostic.render("f") == line
    assert diagnostic.violation() == violation
    assert Diagnostic.of_violation(violation) == diagnostic


def test_an_error_has_a_line_for_each_mistake() -> None:
    error = FileError(Path("/x/y"), Diagnostic("a", "is wrong", 2, 1), "cannot be read")
    assert str(error) == "/x/y:2:1: a: is wrong\n/x/y: cannot be read"
    assert error.diagnostics == [Diagnostic("a", "is wrong", 2, 1), Diagnostic("", "cannot be read")]


@pytest.mark.parametrize(
    ("given", "question"),
    [("--dta", "; did you mean --data?"), ("modle", "; did you mean model or models?"), ("xyzzy", "")],
)
def test_what_was_meant(given: str, question: str) -> None:
    assert did_you_mean(given, ["--data", "model", "models"]) == question


@pytest.mark.parametrize(
    ("text", "keys", "rendered"),
    [
        ("  x = 1", ("x",), "f:1:3: x: no"),
        ("[store]\nrun_dir = 1", ("store", "run-dir"), "f:2:1: store.run-dir: no"),
        ("[models]\n  [models.'a b']\n  k = 1", ("models", "a b", "k"), 'f:3:3: models."a b".k: no'),
        ("[models.'a b']", ("models", "a b", "k"), 'f:1:1: models."a b".k: no'),
    ],
)
def test_keys_of_toml_have_places(text: str, keys: tuple[str, ...], rendered: str) -> None:
    assert TomlFile(Path("f"), text, {}).diagnostic(keys, "no").render("f") == rendered


@given(st.lists(st.from_regex(r"[a-z]{1,3}", fullmatch=True), min_size=1, max_size=6, unique=True), st.data())
def test_lines_of_keys_are_found_among_others(names: list[str], data: st.DataObject) -> None:
    tables = {name: data.draw(st.permutations(["source", "ttl", "kv_bits"])) for name in names}
    lines = ["# [models.x]", ""]
    where = {}
    for name, keys in tables.items():
        lines.append(f'[models."{name}"]' if len(name) > 1 else f"[ models.{name} ]  # ttl = 1")
        where["models", name] = len(lines)
        for key in keys:
            lines.append(f"{key} = 1")
            where["models", name, key] = len(lines)
    file = TomlFile(Path("x"), "\n".join(lines), {})
    for location, line in where.items():
        assert file.diagnostic(location, "").line == line
    assert file.diagnostic(("models", names[-1], "absent"), "").line == where["models", names[-1]]
    assert file.diagnostic(("absent",), "") == Diagnostic("absent", "")
