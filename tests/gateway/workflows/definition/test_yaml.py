import json
from io import StringIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from agentmem.diagnostics import Diagnostic
from agentmem.jsontext import MAX_DEPTH
from gateway.workflows.definition.parser import MAX_BYTES, MAX_NODES, MalformedDefinition, read


def refused(text: str) -> Diagnostic:
    with pytest.raises(MalformedDefinition) as caught:
        read(text)
    assert len(caught.value.diagnostics) == 1
    return caught.value.diagnostics[0]


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("yes", "yes"),
        ("[yes, no, on, off, y, n]", ["yes", "no", "on", "off", "y", "n"]),
        ("[true, True, false, FALSE]", [True, True, False, False]),
        ("[null, ~, '', ]", [None, None, ""]),
        ("a:", {"a": None}),
        ("[1, -2, +3, 0x1F, 0o17, 017]", [1, -2, 3, 31, 15, 17]),
        ("[1.5, .5, 1., 1e3, 1_000, 1:30]", [1.5, 0.5, 1.0, 1000.0, "1_000", "1:30"]),
        ("[2026-01-01, 2026-01-01 10:00:00, 0b1, =]", ["2026-01-01", "2026-01-01 10:00:00", "0b1", "="]),
        ("['1', \"true\", '~']", ["1", "true", "~"]),
        ("[!!str 1, !!float 2, !!int 3, !!bool true, !!null ~]", ["1", 2.0, 3, True, None]),
        ("!!map {a: !!seq [b]}", {"a": ["b"]}),
        ("a: &x [1]\nb: *x\nc: *x", {"a": [1], "b": [1], "c": [1]}),
        ("&k a: 1\nb: {*k : 2}", {"a": 1, "b": {"a": 2}}),
        ("a: |\n  x\n\n  y\nb: >\n  x\n  y\n", {"a": "x\n\ny\n", "b": "x y\n"}),
        ("\ufeffa: 1", {"a": 1}),
        ("a: x\r\nb: y\r\n", {"a": "x", "b": "y"}),
        ('"\\u2028\\t\\n"', "\u2028\t\n"),
        ("'<<': 1", {"<<": 1}),
        ("# comment\n---\na: 1\n...\n", {"a": 1}),
    ],
)
def test_what_is_read(text: str, data: Any) -> None:
    got = read(text).data
    assert got == data
    assert json.dumps(got) == json.dumps(data)  # 1 is neither True nor 1.0


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("", 1, "is empty"),
        ("a: 1\na: 2", 2, "duplicate key"),
        ("? [a]\n: 1", 1, "not YAML"),
        ("a: 1\n---\nb: 1", 2, "another document"),
        ("b: !!python/name:os.system x", 1, "a tag"),
        ("b: !own x", 1, "a tag"),
        ("a: !!bool x", 1, "a tag"),
        ('a: !!int ""', 1, "a tag"),
        ("a: !!omap [a: 1, a: 2]", 1, "a tag"),
        ("a: &a {!!merge <<: {x: 1}, y: 2}", 1, "a tag"),
        ("%YAML 1.1\n---\na: 017", 1, "directives"),
        ('x: 1\na: "\\0"', 2, "control"),
        ("b: !!set {x}", 1, "a tag"),
        ("b: !!binary aaaa", 1, "a tag"),
        ("b: !!timestamp 2026-01-01", 1, "a tag"),
        ("b: !!int x", 1, "a tag"),
        ("a: [.nan]", 1, "not JSON compliant"),
        ("a: 1e999", 1, "not JSON compliant"),
        ("a: " + "1" * 5000, 1, "digits"),
        ("a: b\n\x00", 1, "special characters"),
        ("a: \ud800", 1, "special characters"),
        ("a: &a [*a]", 1, "contains itself"),
        ("a: &a\n  b:\n    c: *a", 3, "contains itself"),
        ("a: *b", 1, "undefined alias"),
        ('"\\UFFFFFFFF"', 1, "not YAML"),
        ("a:\n\tb: 1", 2, "not YAML"),
        ("a: [1\nb: 2", 2, "not YAML"),
        ("a: 'x", 1, "not YAML"),
    ],
)
def test_refused_text_is_told_with_its_line(text: str, line: int, problem: str) -> None:
    found = refused(text)
    assert problem in found.message
    assert found.line == line


@pytest.mark.parametrize("text", ["x" * (MAX_BYTES + 1), "é" * (MAX_BYTES // 2 + 1)], ids=["long", "long-in-bytes"])
def test_a_long_text_is_refused_unread(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.workflows.definition.parser.YAML", None)
    assert refused(text).message == "must not be longer than 1 MiB"


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


LAUGHS = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12))


@pytest.mark.slow("nodes")
@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        (nested(MAX_DEPTH + 1), 1, "nested deeper"),
        ("[" * (MAX_BYTES - 1), 1, "nested deeper"),
        ("- " * (MAX_BYTES // 2), 1, "nested deeper"),
        ("{a: " * (MAX_BYTES // 4), 1, "nested deeper"),
        ("? " * (MAX_BYTES // 2), 1, "nested deeper"),
        (f"a: &a {nested(40)}\nb: {'[' * 30}*a{']' * 30}", 2, "nested deeper"),
        (LAUGHS, 5, f"more than {MAX_NODES} values"),
        (f"a: &a [{'x,' * 1000}]\nb: [{'*a,' * 50}]", 2, f"more than {MAX_NODES} values"),
        ("- x\n" * MAX_NODES, MAX_NODES, f"more than {MAX_NODES} values"),
        (f"a: &a {'x' * 600_000}\nb: *a", 1, "longer than 1 MiB"),
        (f"a: &a [[{'x' * 600_000}]]\nb: *a", 1, "longer than 1 MiB"),
    ],
    ids=["deep", "flow", "block", "maps", "keys", "deep-alias", "laughs", "aliases", "nodes", "characters", "in-lists"],
)
def test_limits(text: str, line: int, problem: str) -> None:
    found = refused(text)
    assert problem in found.message
    assert found.line == line


def test_what_is_within_the_limits_is_read() -> None:
    assert read(nested(MAX_DEPTH)).data
    assert len(read("[" + "x," * 1000 + "]").data) == 1000
    assert read("a: &a " + nested(30) + "\nb: " + "[" * 33 + "*a" + "]" * 33).data["b"]


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(
        st.characters(
            codec="utf-8", exclude_categories=["Cc", "Cs"], exclude_characters="\u2028\u2029\ufeff\ufffe\uffff"
        ),
        max_size=12,
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc ~é:#-1", max_size=5), inner, max_size=4),
    max_leaves=20,
)


@given(VALUES, st.booleans())
def test_data_survives_in_block_style(data: Any, wide: bool) -> None:
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style, yaml.width = False, 1000 if wide else 20
    text = StringIO()
    yaml.dump(data, text)
    assert read(text.getvalue()).data == data


def test_where_values_keys_and_aliases_are() -> None:
    made = read("a: &x\n  - b\n  - {c: 1}\nd: *x\ne:\n  f: 'g'\n")
    assert made.position(()) == (1, 1)
    assert made.position(("a",)) == (1, 4)  # its anchor
    assert made.position(("a", 1, "c")) == (3, 9)
    assert made.position(("d",)) == (4, 4)
    assert made.position(("d", 1, "c")) == (3, 9)
    assert made.position(("e", "f"), of_key=True) == (6, 3)
    assert made.position(("e", "f")) == (6, 6)
    assert made.position(("e", "not there", 3)) == made.position(("e",)) == (6, 3)
    assert made.position(("e", "not there"), of_key=True) == (6, 3)
    assert made.position(("a", 0), of_key=True) == (2, 5)


@given(st.text(alphabet="ab:-[]{}&*!|>'\"%#,?~<\n \t1.$é\x00\ud800", max_size=60) | st.text(max_size=60))
def test_no_text_raises_anything_else(text: str) -> None:
    try:
        made = read(text)
    except MalformedDefinition as error:
        assert error.diagnostics  # noqa: PT017
    else:
        json.dumps(made.data, allow_nan=False).encode()


@pytest.mark.parametrize("text", ["a:\n  b:  # nothing\n\nc: 1", "a:\n  b:\nc: 1", "a: {b: , c: 1}"])
def test_a_value_that_is_not_written_is_where_its_key_is(text: str) -> None:
    made = read(text)
    assert made.data["a"]["b"] is None
    assert made.position(("a", "b")) == made.position(("a", "b"), of_key=True)


def test_a_long_tag_is_not_told_whole() -> None:
    assert len(refused(f"!{'a' * 100_000}!x y").message) < 300
