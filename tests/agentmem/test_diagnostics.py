from pathlib import Path

import pytest

from agentmem.diagnostics import Diagnostic, FileError, did_you_mean, toml_key
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


def test_keys_of_toml_are_quoted_where_needed() -> None:
    assert toml_key(("models", "a b", "kv-bits")) == 'models."a b".kv-bits'
