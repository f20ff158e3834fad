"""YAML as plain data that knows its lines.

It is YAML 1.2's core schema: `true`, `false`, `null` and numbers are what they look like, and everything else is
text; so `options: [yes, no]` are two texts, and `2026-01-01` is one. What a reader could take for something else, or
what could cost more than the file's size, is refused: keys that are given twice or are no texts, tags beyond the
core's, merge keys (`<<`; write an alias as a whole value instead), NaN and infinities, control characters, directives,
several documents, aliases that contain themselves, and aliases that grow the file beyond its limits.
"""

import re
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Final, NoReturn

import yaml

from agentmem.jsontext import MAX_DEPTH
from gateway.workflows.definition.mistakes import MAX_MISTAKES, MalformedDefinition, Mistake, Path, Position, field_at

MAX_BYTES: Final = 1024 * 1024
"""Of the file, and of all its texts after aliases are expanded."""
MAX_NODES: Final = 50_000
"""Texts, keys, numbers, lists and mappings, after aliases are expanded."""

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_REFUSED: Final = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]|\r(?!\n)|^%", re.MULTILINE
)
_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")  # in texts, where an escape brings them in
_TAG: Final = "tag:yaml.org,2002:"
_MAX_DIGITS: Final = 40
_NO_CHARACTER: Final = "is not YAML: has an escape (\\U) of what is no character"
_NO_TEXT: Final = "has a key that is no text; write it in quotes"
_SCALARS: Final = (
    ("null", re.compile(r"(?:~|null|Null|NULL|)")),
    ("bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)")),
    ("int", re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")),
    ("float", re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")),
    ("not finite", re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")),
)


@dataclass(frozen=True, slots=True)
class _Node:
    """A value, where it stands (`start` and `end` in characters), and its size with all that is in it."""

    data: Any
    position: Position
    start: int
    end: int
    inner: "dict[str | int, _Node]" = field(default_factory=dict)
    keys: dict[str, Position] = field(default_factory=dict)
    nodes: int = 1
    characters: int = 0
    height: int = 0


class Source:
    """A file's data, and where each value of it stands."""

    def __init__(self, text: str, root: _Node) -> None:
        self._text = text
        self._root = root
        self._lines = [0, *(found.end() for found in re.finditer("\n", text))]
        self._references: dict[Path, tuple[list[int], list[int]]] = {}
        self.data: Any = root.data

    def position(self, path: Path) -> Position:
        """Where the value at `path` begins: an alias where it is used, its parts where they are written.

        Of what isn't there, as much of the path as is.
        """
        return self._node(path).position

    def key(self, path: Path) -> Position:
        """Where the key at `path` is; of an element of a list, or where there is no such key, as `position`."""
        if path:
            above = self._node(path[:-1])
            if above.inner.get(path[-1]) is not None and path[-1] in above.keys:
                return above.keys[str(path[-1])]
        return self.position(path)

    def reference(self, path: Path, offset: int) -> Position:
        """Where the `${` at `offset` in the text at `path` stands; where the text begins, if that can't be told."""
        node = self._node(path)
        if not isinstance(node.data, str):
            return node.position
        if path not in self._references:  # a text may have thousands
            written = [node.start + place for place in _references(self._text[node.start : node.end])]
            self._references[path] = (written, _references(node.data))
        written, meant = self._references[path]
        number = bisect_left(meant, offset)
        if len(written) != len(meant) or number == len(meant):
            return node.position
        line = bisect_right(self._lines, written[number])
        return Position(line, written[number] - self._lines[line - 1] + 1)

    def _node(self, path: Path) -> _Node:
        node = self._root
        for part in path:
            if part not in node.inner:
                break
            node = node.inner[part]
        return node


def read(text: str) -> Source:
    """`text` as data. Raises MalformedDefinition. It costs no more than the limits allow, whatever the text is."""
    text = text.removeprefix("\ufeff")
    if len(text) > MAX_BYTES or (not text.isascii() and len(text.encode(errors="surrogatepass")) > MAX_BYTES):
        raise MalformedDefinition([Mistake("definition", "must not be longer than 1 MiB", Position(1, 1))])
    if refused := _REFUSED.search(text):
        raise MalformedDefinition([Mistake("definition", _why(refused[0]), _position(text, refused.start()))])
    return Source(text, _Composer(text).document())


def _references(text: str) -> list[int]:
    return [found.start() for found in re.finditer(r"\$\{", text)]


def _why(refused: str) -> str:
    if refused == "%":
        return "is YAML 1.2 without directives: no line may begin with %"
    if "\ud800" <= refused <= "\udfff":
        return "must be well-formed Unicode (it has a lone surrogate)"
    return f"must not have the character U+{ord(refused):04X}; in double quotes it may be written as an escape"


def _position(text: str, index: int) -> Position:
    return Position(text.count("\n", 0, index) + 1, index - text.rfind("\n", 0, index))


class _Composer:
    """Builds one document from the parser's events, which come one at a time: so the limits hold before it reads on."""

    def __init__(self, text: str) -> None:
        self._events = yaml.parse(text, Loader=_LOADER)
        self._anchors: dict[str, _Node | None] = {}  # None: it is not at its end yet
        self._path: list[str | int] = []
        self._mistakes: list[Mistake] = []
        self._nodes = 0
        self._characters = 0

    def document(self) -> _Node:
        try:
            return self._document()
        except yaml.MarkedYAMLError as error:  # the other kind is about characters, which are checked before
            said = ", ".join(part for part in (error.context, error.problem) if part)
            self._fatal(f"is not YAML: {said}", error.problem_mark or error.context_mark)
        except (ValueError, OverflowError):  # of the parser in Python, which makes a character of any escape
            raise MalformedDefinition([Mistake("definition", _NO_CHARACTER, Position(1, 1))]) from None

    def _document(self) -> _Node:
        next(self._events)  # the stream's start
        if isinstance(start := next(self._events), yaml.StreamEndEvent):
            self._fatal("is empty", start.start_mark)
        root = self._node(next(self._events))
        next(self._events)  # the document's end
        if not isinstance(more := next(self._events), yaml.StreamEndEvent):
            self._fatal("must be one document; here another begins", more.start_mark)
        if self._mistakes:
            raise MalformedDefinition(self._mistakes)
        return root

    def _node(self, event: Any) -> _Node:
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        if isinstance(event, yaml.CollectionStartEvent) and len(self._path) >= MAX_DEPTH:
            self._fatal(f"must not be nested deeper than {MAX_DEPTH}", event.start_mark)
        self._count(event, 1, 0)
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        if isinstance(event, yaml.MappingStartEvent):
            node = self._mapping(event)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self._sequence(event)
        else:
            node = self._scalar(event)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _alias(self, event: Any) -> _Node:
        if event.anchor not in self._anchors:
            self._fatal("is an alias (*) of what has no such anchor (&) before it", event.start_mark)
        if (node := self._anchors[event.anchor]) is None:
            self._fatal("is an alias (*) that contains itself", event.start_mark)
        if len(self._path) + node.height > MAX_DEPTH:
            self._fatal(f"must not be nested deeper than {MAX_DEPTH}, aliases expanded", event.start_mark)
        self._count(event, node.nodes, node.characters)
        mark = event.start_mark
        return replace(node, position=_of(mark), start=mark.index, end=event.end_mark.index)

    def _mapping(self, event: Any) -> _Node:
        self._check_tag(event, "map")
        inner: dict[str | int, _Node] = {}
        keys: dict[str, Position] = {}
        size = _Size()
        while not isinstance(key_event := next(self._events), yaml.MappingEndEvent):
            if isinstance(key_event, yaml.CollectionStartEvent):
                self._fatal(_NO_TEXT, key_event.start_mark)
            key = self._node(key_event)
            name = self._key(key, key_event, inner)
            self._path.append(name)
            value = self._node(next(self._events))
            self._path.pop()
            size.add(key)
            size.add(value)
            inner.setdefault(name, value)
            keys.setdefault(name, key.position)
        return self._collection(event, {name: node.data for name, node in inner.items()}, inner, keys, size)

    def _sequence(self, event: Any) -> _Node:
        self._check_tag(event, "seq")
        inner: dict[str | int, _Node] = {}
        size = _Size()
        for index in count():
            if isinstance(one := next(self._events), yaml.SequenceEndEvent):
                break
            self._path.append(index)
            inner[index] = self._node(one)
            self._path.pop()
            size.add(inner[index])
        return self._collection(event, [node.data for node in inner.values()], inner, {}, size)

    def _collection(
        self, event: Any, data: Any, inner: dict[str | int, _Node], keys: dict[str, Position], size: "_Size"
    ) -> _Node:
        mark = event.start_mark
        return _Node(data, _of(mark), mark.index, mark.index, inner, keys, size.nodes, size.characters, size.height)

    def _key(self, key: _Node, event: Any, before: dict[str | int, _Node]) -> str:
        if not isinstance(key.data, str):
            self._mistake(_NO_TEXT, event)
            return ""
        if key.data == "<<" and isinstance(event, yaml.ScalarEvent) and event.implicit[0]:
            self._mistake("has a merge key (<<), which is not supported; use an alias as a whole value", event)
        elif key.data in before:
            self._path.append(key.data)
            self._mistake("is given more than once", event)
            self._path.pop()
        return key.data

    def _scalar(self, event: Any) -> _Node:
        mark = event.start_mark
        self._count(event, 0, len(event.value))
        data = self._value(event)
        return _Node(data, _of(mark), mark.index, event.end_mark.index, characters=len(event.value))

    def _value(self, event: Any) -> Any:
        kind = self._kind(event)
        text: str = event.value
        match kind:
            case "null":
                return None
            case "bool":
                return text.lower() == "true"
            case "int" if len(text) <= _MAX_DIGITS:
                return int(text, 0) if text.startswith(("0o", "0x")) else int(text)
            case "float" if len(text) <= _MAX_DIGITS and abs(value := float(text)) < float("inf"):
                return value
            case "int" | "float":
                self._mistake("is a number that is out of range", event)
            case "not finite":
                self._mistake("must be a finite number; write it in quotes if it is text", event)
            case "str" if _CONTROL.search(text):
                self._mistake("must not have control characters, save tabs and line feeds", event)
        return text

    def _kind(self, event: Any) -> str:
        """What a scalar is: by its tag, or what it looks like; quoted ones are texts."""
        looks = next((kind for kind, pattern in _SCALARS if pattern.fullmatch(event.value)), "str")
        if event.tag is None:
            return looks if event.implicit[0] else "str"
        if event.tag == "!":
            return "str"
        tag = event.tag.removeprefix(_TAG)
        if tag == "str" or tag == looks or (tag, looks) == ("float", "int"):
            return str(tag)
        if tag in ("null", "bool", "int", "float"):
            self._mistake(f"is not written as the tag !!{tag} says", event)
        else:
            self._check_tag(event, "str")
        return "str"

    def _check_tag(self, event: Any, kind: str) -> None:
        if event.tag not in (None, "!", _TAG + kind):
            self._mistake("has a tag (!) that is not supported; leave it out", event)

    def _count(self, event: Any, nodes: int, characters: int) -> None:
        self._nodes += nodes
        self._characters += characters
        if self._nodes > MAX_NODES:
            self._fatal(f"must not have more than {MAX_NODES} values, aliases expanded", event.start_mark)
        if self._characters > MAX_BYTES:
            self._fatal("must not be longer than 1 MiB, aliases expanded", event.start_mark)

    def _mistake(self, problem: str, event: Any) -> None:
        self._mistakes.append(Mistake(field_at(tuple(self._path)), problem, _of(event.start_mark)))
        if len(self._mistakes) > MAX_MISTAKES:
            raise MalformedDefinition(self._mistakes)

    def _fatal(self, problem: str, mark: Any) -> NoReturn:
        raise MalformedDefinition([*self._mistakes, Mistake(field_at(tuple(self._path)), problem, _of(mark))])


class _Size:
    """The size of a collection, as its parts come."""

    def __init__(self) -> None:
        self.nodes = 1
        self.characters = 0
        self.height = 1

    def add(self, node: _Node) -> None:
        self.nodes += node.nodes
        self.characters += node.characters
        self.height = max(self.height, node.height + 1)


def _of(mark: Any) -> Position:
    return Position(mark.line + 1, mark.column + 1)
