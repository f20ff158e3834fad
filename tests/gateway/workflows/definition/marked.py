"""Workflow files whose comments say what is wrong: `#! field | problem` at the end of the line that it is told of."""

import re

import pytest

from gateway.workflows.definition.parser import MalformedDefinition, load

_MARK = re.compile(r"#! *(?P<field>[^|]*?) \| (?P<problem>.*)$")


def told(text: str) -> list[tuple[int, str, str]]:
    """Return line, field and problem of load()'s diagnostics of `text`; assert that their columns have text."""
    with pytest.raises(MalformedDefinition) as caught:
        load(text, {})
    lines = text.split("\n")
    found = []
    for one in caught.value.diagnostics:
        line, column = one.line, one.column
        # There, or right after the colon where a value is missing.
        assert lines[line - 1][max(column - 2, 0) : column].strip(), one
        found.append((line, one.field, one.message))
    return sorted(found)


def marked(text: str) -> list[tuple[int, str, str]]:
    """Return the problems `text`'s comments name."""
    found = []
    for number, line in enumerate(text.split("\n"), start=1):
        for mark in line.split("#!")[1:]:
            match = _MARK.match("#!" + mark.rstrip())
            assert match is not None, line
            found.append((number, match["field"], match["problem"]))
    assert found
    return sorted(found)
