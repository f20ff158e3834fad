"""A workflow file's text as a Definition, or its mistakes by line and column.

The YAML is 1.2's core schema: all but `true`, `null` and numbers is text, also `yes` and `2026-01-01`.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import copy
from itertools import chain, islice
from typing import Any, Final, NamedTuple

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer, MaxDepthExceededError
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import AliasEvent
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.resolver import VersionedResolver
from ruamel.yaml.tag import Tag

from agentmem.diagnostics import Diagnostic, did_you_mean
from agentmem.errors import InvalidArgument, Violation
from agentmem.jsontext import MAX_DEPTH
from agentmem.validation import MAX_WORKFLOW_BYTES
from gateway.api.complaints import Complaint, complaints, dotted
from gateway.workflows.definition.checks import Path, Problem, problems
from gateway.workflows.definition.schema import KEYS, MAX_TEXT, Definition
from gateway.workflows.definition.template_checks import resolved, text_problems, variable_problems

MAX_BYTES: Final = MAX_WORKFLOW_BYTES
"""Also of its texts after aliases are expanded."""
MAX_NODES: Final = 20_000
"""Texts, keys, numbers, lists and mappings, after aliases are expanded."""

_TOO_LONG: Final = "must not be longer than 1 MiB, aliases expanded"
_TOO_MANY: Final = f"must not have more than {MAX_NODES} values, aliases expanded"
_TOO_DEEP: Final = f"must not be nested deeper than {MAX_DEPTH}, aliases expanded"
_DIRECTIVE: Final = re.compile("^%", re.MULTILINE)
_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_TAG: Final = "tag:yaml.org,2002:"
_CORE: Final = {
    "null": re.compile(r"~|null|Null|NULL|"),
    "bool": re.compile(r"true|True|TRUE|false|False|FALSE"),
    "int": re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+"),
    "float": re.compile(
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
    ),
}
"""Plain scalars that are not text; the first that fits counts."""

_MAX_STATUS_BYTES: Final = 4096  # it travels in a trailer, whose readers take 8 KiB, as base64
_MAX_FIELD: Final = 200
_MAX_SAID: Final = 200  # of the library, with tags of any length
MAX_MISTAKES: Final = 50
"""Mistakes of a kind that are looked for: a text may have thousands, whose places take time."""
_MAX_HINTED: Final = 64
_MAX_KNOWN: Final = 1000
_IN_YAML: Final = {
    "string_pattern_mismatch": "must be a name: a letter, then at most 63 letters, digits, _ and -",
    "string_type": "must be text; in quotes, if it looks like something else",
    "model_type": "must be a mapping; {} is an empty one",
    "dict_type": "must be a mapping; {} is an empty one",
    "list_type": "must be a list",
    "bool_type": "must be true or false",
}


class MalformedDefinition(InvalidArgument):
    """`diagnostics` are in the file's order; the first that have room are violations."""

    def __init__(self, diagnostics: Sequence[Diagnostic]) -> None:
        self.diagnostics = tuple(sorted(diagnostics, key=lambda one: (one.line, one.column)))
        sent: list[Violation] = []
        size = 0
        for diagnostic in self.diagnostics:
            violation = diagnostic.violation()
            size += sum(len(part.encode()) for part in violation)
            if sent and size > _MAX_STATUS_BYTES:
                sent.append(Violation("definition", f"has {len(diagnostics) - len(sent)} more mistakes"))
                break
            sent.append(violation)
        super().__init__(*sent[0], others=sent[1:])


def load(text: str, variables: Mapping[str, str]) -> Definition:
    """Return the workflow with `variables`, which are no templates, in place of the file's own.

    Raise MalformedDefinition after one of three steps: YAML, the schema's form, the checks. Thread-safe; the largest
    file takes seconds.
    """
    source = read(text)
    try:
        definition = Definition.model_validate(source.data)
    except ValidationError as error:
        raise MalformedDefinition(
            [source.diagnostic(_of_schema(one)) for one in islice(complaints(error, source.data), MAX_MISTAKES)]
        ) from None
    mistakes = list(_of_run(variables, definition.variables))
    found = list(islice(variable_problems(definition.variables), MAX_MISTAKES))
    values = dict(definition.variables)
    if not found and not mistakes:
        values, found = resolved(definition.variables, variables)
    found += islice(chain(problems(definition), text_problems(definition, values)), MAX_MISTAKES)
    if found or mistakes:
        raise MalformedDefinition([*mistakes, *map(source.diagnostic, found)])
    return definition.model_copy(update={"variables": values})


def _of_schema(complaint: Complaint) -> Problem:
    message = _IN_YAML.get(complaint.kind, complaint.problem)
    if complaint.kind == "extra_forbidden" and (name := str(complaint.path[-1])) not in KEYS:
        return Problem(complaint.path, message, complaint.of_key, given=name, known=KEYS)
    return Problem(complaint.path, message, complaint.of_key)


def _hint(given: str, known: Collection[str]) -> str:
    return did_you_mean(given, islice(known, _MAX_KNOWN)) if len(given) <= _MAX_HINTED else ""


def _of_run(given: Mapping[str, str], known: Mapping[str, str]) -> Iterator[Diagnostic]:
    for name, value in given.items():
        field = _field(("variables", name))
        if name not in known:
            hint = _hint(name, known)
            yield Diagnostic(field, f"is given for the run, but the file has no such variable{hint}")
        elif len(value) > MAX_TEXT:
            yield Diagnostic(field, f"must not be longer than {MAX_TEXT} characters")


class Source:
    """A file's data, and the nodes that it was made of."""

    def __init__(self, data: Any, root: Node) -> None:
        self.data = data
        self._root = root

    def position(self, path: Path, *, of_key: bool = False) -> tuple[int, int]:
        """Return line and column of the value at `path`, or of its key.

        A value that is not written stands where its key is, an alias where it is used.
        """
        node, key = self._root, self._root
        for step in path:
            if isinstance(node, MappingNode):
                found = next((pair for pair in node.value if pair[0].value == step), None)
            elif isinstance(node, SequenceNode) and isinstance(step, int) and step < len(node.value):
                found = (node.value[step],) * 2
            else:
                found = None
            if found is None:
                return _place(node.start_mark)
            key, node = found
        missing = node.start_mark.index == node.end_mark.index  # such a value stands where the next token is
        return _place((key if of_key or missing else node).start_mark)

    def diagnostic(self, problem: Problem) -> Diagnostic:
        hint = _hint(problem.given, problem.known) if problem.known else ""
        place = self.position(problem.path, of_key=problem.of_key)
        return Diagnostic(_field(problem.path), problem.message + hint, *place)


def read(text: str) -> Source:
    """Return `text` as data, at a cost within the limits. Raise MalformedDefinition."""
    if len(text) > MAX_BYTES or len(text.encode(errors="surrogatepass")) > MAX_BYTES:
        raise _malformed("must not be longer than 1 MiB", 1, 1)
    if directive := _DIRECTIVE.search(text):
        line = text.count("\n", 0, directive.start()) + 1
        raise _malformed("is YAML 1.2 without directives: no line may begin with %", line, 1)
    yaml = YAML(typ="safe", pure=True)
    yaml.max_depth = MAX_DEPTH + 1  # it counts scalars, too
    yaml.Composer, yaml.Resolver = _Composer, _CoreSchema
    try:
        root = yaml.compose(text)
        if root is None:
            raise _malformed("is empty", 1, 1)
        _check_size(root, {})
        data = yaml.constructor.construct_document(root)
        json.dumps(data, allow_nan=False)
        return Source(data, root)
    except MaxDepthExceededError as error:
        raise _malformed(_TOO_DEEP, *_place(error.problem_mark)) from None
    except MarkedYAMLError as error:
        said = ", ".join(part for part in (error.context, error.problem) if part).partition("\n")[0]
        place = _place(error.problem_mark or error.context_mark)
        raise _malformed(f"is not YAML: {said[:_MAX_SAID]}", *place) from None
    except (YAMLError, ValueError, TypeError, OverflowError) as error:  # of the reader, of escapes, of what is no JSON
        raise _malformed(f"is not YAML: {str(error).partition(chr(10))[0][:_MAX_SAID]}", 1, 1) from None


class _CoreSchema(VersionedResolver):  # type: ignore[misc]
    """YAML 1.2's core schema; the library's own has dates, binary numbers and more."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        if kind is ScalarNode and implicit[0]:
            return Tag(suffix=_TAG + next((tag for tag, looks in _CORE.items() if looks.fullmatch(value)), "str"))
        return super().resolve(kind, value, (False, False))


class _Composer(Composer):  # type: ignore[misc]
    """Composes at most MAX_NODES nodes, with aliases where they are used."""

    def __init__(self, loader: Any = None) -> None:
        super().__init__(loader)
        self.warn_double_anchors = False
        self._composed = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.parser.peek_event()
        self._composed += 1
        if self._composed > MAX_NODES:
            raise _malformed(_TOO_MANY, *_place(event.start_mark))
        node = super().compose_node(parent, index)
        if not isinstance(event, AliasEvent):
            return node
        if node.end_mark is None:
            raise _malformed("is an alias (*) that contains itself", *_place(event.start_mark))
        node = copy(node)
        node.start_mark, node.end_mark = event.start_mark, event.end_mark
        return node


class _Size(NamedTuple):
    """A node's size with its aliases expanded."""

    nodes: int
    characters: int
    depth: int


def _check_size(node: Node, known: dict[int, _Size]) -> _Size:
    """Count nodes that share a value, as an alias and its anchor do, once. Raise MalformedDefinition."""
    if not _has_core_tag(node):
        raise _malformed("has a tag (!) that is not supported, or does not fit; leave it out", *_place(node.start_mark))
    if isinstance(node, ScalarNode):
        if _CONTROL.search(node.value):
            raise _malformed("must not have control characters, save tabs and line feeds", *_place(node.start_mark))
        return _Size(1, len(node.value), 0)
    if (size := known.get(id(node.value))) is None:
        inner = chain.from_iterable(node.value) if isinstance(node, MappingNode) else node.value
        sizes = [_check_size(each, known) for each in inner]
        nodes, characters = 1 + sum(each.nodes for each in sizes), sum(each.characters for each in sizes)
        size = known[id(node.value)] = _Size(nodes, characters, 1 + max((each.depth for each in sizes), default=0))
    for passed, problem in (
        (size.depth > MAX_DEPTH, _TOO_DEEP),
        (size.nodes > MAX_NODES, _TOO_MANY),
        (size.characters > MAX_BYTES, _TOO_LONG),
    ):
        if passed:
            raise _malformed(problem, *_place(node.start_mark))
    return size


def _has_core_tag(node: Node) -> bool:
    """Other tags would make dates, sets or merged mappings."""
    tag = (node.tag or "").removeprefix(_TAG)
    if not isinstance(node, ScalarNode):
        return bool(tag == ("map" if isinstance(node, MappingNode) else "seq"))
    fits = [_CORE[name] for name in ((tag, "int") if tag == "float" else (tag,)) if name in _CORE]
    return tag == "str" or any(looks.fullmatch(node.value) for looks in fits)


def _malformed(problem: str, line: int, column: int) -> MalformedDefinition:
    return MalformedDefinition([Diagnostic("definition", problem, line, column)])


def _place(mark: Any) -> tuple[int, int]:
    return mark.line + 1, mark.column + 1


def _field(path: Path) -> str:
    """Return "phases[0].center"; "definition" for the whole file."""
    text = dotted(path, "definition")
    return text if len(text) <= _MAX_FIELD else text[:_MAX_FIELD] + "…"
