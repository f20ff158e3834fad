import json
from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from agentmem.diagnostics import Diagnostic
from agentmem.jsontext import MAX_DEPTH
from gateway.workflows.definition.checks import Path
from gateway.workflows.definition.parser import MAX_BYTES, MAX_MISTAKES, MAX_NODES, MalformedDefinition, read


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
    ("text", "line", "column", "field", "problem"),
    [
        ("", 1, 1, "definition", "is empty"),
        ("a: 1\na: 2", 2, 1, "a", "given more than once"),
        ("x: {b: 1, 'b': 2}", 1, 11, "x.b", "given more than once"),
        ("a: 1\n1: 2", 2, 1, "definition", "no text"),
        ("true: 2", 1, 1, "definition", "no text"),
        ("? [a]\n: 1", 1, 3, "definition", "no text"),
        ("x: &a [1]\n*a : 1", 2, 1, "definition", "no text"),
        ("a: 1\n---\nb: 1", 2, 1, "definition", "another document"),
        ("b: !!python/name:os.system x", 1, 4, "b", "a tag"),
        ("b: !own x", 1, 4, "b", "a tag"),
        ("b: !!set {x}", 1, 4, "b", "a tag"),
        ("b: !!seq {x: 1}", 1, 4, "b", "a tag"),
        ("b: !!map [x]", 1, 4, "b", "a tag"),
        ("b: !!binary aaaa", 1, 4, "b", "a tag"),
        ("b: !!timestamp 2026-01-01", 1, 4, "b", "a tag"),
        ("b: !!int x", 1, 4, "b", "!!int"),
        ("a: &x {b: 1}\nc:\n  <<: *x", 3, 3, "c", "merge key"),
        ("a: [.nan]", 1, 5, "a[0]", "finite"),
        ("a: -.inf", 1, 4, "a", "finite"),
        ("a: 1e999", 1, 4, "a", "finite"),
        ("a: " + "1" * 5000, 1, 4, "a", "out of range"),
        ("a: b\n\x00", 2, 1, "definition", "U+0000"),
        ("a: b\u2028", 1, 5, "definition", "U+2028"),
        ("a: b\rc: d", 1, 5, "definition", "U+000D"),
        ("a: b\n  \ufeff", 2, 3, "definition", "U+FEFF"),
        ("a: \ud800", 1, 4, "definition", "surrogate"),
        ('x: 1\na: "\\0"', 2, 4, "a", "control"),
        ("%YAML 1.2\n---\na: 1", 1, 1, "definition", "directives"),
        ("a: &a [*a]", 1, 8, "definition", "contains itself"),
        ("a: &a\n  b:\n    c: *a", 3, 8, "definition", "contains itself"),
        ("a: *b", 1, 4, "definition", "no such anchor"),
        ('"\\UFFFFFFFF"', 1, 2, "definition", "not YAML"),
        ('"\\U00110000"', 1, 2, "definition", "not YAML"),
        ("a:\n\tb: 1", 2, 1, "a", "not YAML"),
        ("a: [1\nb: 2", 2, 2, "a", "not YAML"),
        ("a: 'x", 1, 6, "a", "not YAML"),
        ("a: {b: }}", 1, 9, "definition", "not YAML"),
    ],
)
def test_what_is_refused(text: str, line: int, column: int, field: str, problem: str) -> None:
    found = refused(text)
    assert problem in found.message
    assert found.line == line
    if "not YAML" not in problem:  # where exactly they give up is the parsers' own
        assert (found.field, found.column) == (field, column)


def test_half_a_surrogate_pair_cannot_be_escaped_in() -> None:
    assert (refused('a: "\\ud800"').line, refused('a: "\\ud800"').field) == (1, "a")


def test_mistakes_are_found_together() -> None:
    with pytest.raises(MalformedDefinition) as caught:
        read("a: 1\na: .inf\n2: x\nb: .nan")
    assert [(one.line, one.field) for one in caught.value.diagnostics] == [(2, "a"), (3, "definition"), (4, "b")]


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [x]\nb: [" + "*a, " * 2_500_000 + "]",
        "x" * (MAX_BYTES + 1),
        "é" * (MAX_BYTES // 2 + 1),
    ],
    ids=["ten-megabytes-of-aliases", "long", "long-in-bytes"],
)
def test_a_long_text_is_refused_unread(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.workflows.definition.parser.YAML", None)
    assert refused(text).message == "must not be longer than 1 MiB"


def test_it_stops_where_there_are_more_mistakes_than_are_told() -> None:
    with pytest.raises(MalformedDefinition) as caught:
        read("a: 1\n" * 1000)
    assert len(caught.value.diagnostics) == MAX_MISTAKES + 1


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
        (f"a: &a {'x' * 600_000}\nb: *a", 2, "longer than 1 MiB"),
        (f"a: &a [[{'x' * 600_000}]]\nb: *a", 2, "longer than 1 MiB"),
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


SPACES = st.sampled_from(["", " ", "\n", "  \n ", " # é\n", "\r\n"])


class Writer:
    """Writes data in flow style with spaces drawn between its parts, and notes where each part begins."""

    def __init__(self, space: Callable[[], str]) -> None:
        self.text = ""
        self.values: dict[Path, tuple[int, int]] = {}
        self.keys: dict[Path, tuple[int, int]] = {}
        self._space = space

    def write(self, value: Any, path: Path = ()) -> None:
        self.values[path] = self._put("")
        if isinstance(value, dict):
            self._put("{")
            for key, one in value.items():
                self._put(self._space())
                self.keys[(*path, key)] = self._put(json.dumps(key, ensure_ascii=False))
                self._put(": " + self._space())
                self.write(one, (*path, key))
                self._put(self._space() + ",")
            self._put("}")
        elif isinstance(value, list):
            self._put("[")
            for index, one in enumerate(value):
                self._put(self._space())
                self.write(one, (*path, index))
                self._put(self._space() + ",")
            self._put("]")
        else:
            self._put(json.dumps(value, ensure_ascii=False))

    def _put(self, text: str) -> tuple[int, int]:
        before = self.text.split("\n")
        self.text += text
        return len(before), len(before[-1]) + 1


@given(VALUES, st.data())
def test_each_value_and_key_is_where_it_was_written(data: Any, drawn: st.DataObject) -> None:
    writer = Writer(lambda: drawn.draw(SPACES))
    writer.write(data)
    made = read(writer.text)
    assert made.data == data
    assert {path: made.position(path) for path in writer.values} == writer.values
    assert {path: made.position(path, of_key=True) for path in writer.keys} == writer.keys


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


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("a: ${x} and ${y}", [(1, 4), (1, 13)]),
        ("a: |\n  one ${x}\n\n    ${y}\n", [(2, 7), (4, 5)]),
        ("a: >-\n  one\n  ${x} two\n  ${y}", [(3, 3), (4, 3)]),
        ("a: 'one\n  it''s ${x} ${y}'", [(2, 9), (2, 14)]),
        ('a: "\\t\\u00e9 ${x} \\\n  ${y}"', [(1, 14), (2, 3)]),
        ("a: | # of ${no}\n  ${x}\n  ${y}", [(1, 4), (1, 4)]),  # a comment: it can't be told
        ("b: &x ${x} ${y}\na: *x", [(2, 4), (2, 4)]),
    ],
    ids=["plain", "literal", "folded", "single", "double", "comment", "alias"],
)
def test_where_references_are(text: str, places: list[tuple[int, int]]) -> None:
    made = read(text)
    value = made.data["a"]
    assert [made.position(("a",), offset=value.index(name)) for name in ("${x}", "${y}")] == places


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
