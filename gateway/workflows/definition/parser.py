"""A workflow file's text as a Definition, or all that is wrong with it by line and column.

The YAML is 1.2's core schema, whatever a file's own editor takes it for: `true`, `false`, `null` and numbers are what
they look like, and everything else is text. So `options: [yes, no]` are two texts, which they are not in YAML 1.1, and
`2026-01-01` is one. Refused is what a reader could take for something else, or what could cost more than the file's
size: keys that are given twice or are no texts, tags beyond the core's, merge keys (`<<`; write an alias as a whole
value instead), NaN and infinities, control characters, directives, several documents, aliases that contain themselves,
and aliases that grow the file beyond its limits.
"""

import math
import re
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import copy
from itertools import chain, islice
from typing import Any, Final

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer, MaxDepthExceededError
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.events import AliasEvent
from ruamel.yaml.nodes import Node, ScalarNode, SequenceNode
from ruamel.yaml.resolver import VersionedResolver
from ruamel.yaml.tag import Tag

from agentmem.diagnostics import Diagnostic, did_you_mean
from agentmem.errors import InvalidArgument, Violation
from agentmem.jsontext import MAX_DEPTH
from agentmem.validation import MAX_WORKFLOW_BYTES
from gateway.api.complaints import Complaint, complaints, dotted
from gateway.workflows.definition.checks import MAX_MISTAKES, Path, Problem, problems
from gateway.workflows.definition.schema import KEYS, MAX_TEXT, Definition
from gateway.workflows.definition.template_checks import resolved, text_problems, variable_problems

MAX_BYTES: Final = MAX_WORKFLOW_BYTES
"""Of the file, and of all its texts after aliases are expanded."""
MAX_NODES: Final = 20_000
"""Texts, keys, numbers, lists and mappings, after aliases are expanded."""

_TOO_MANY: Final = f"must not have more than {MAX_NODES} values, aliases expanded"
_TOO_DEEP: Final = f"must not be nested deeper than {MAX_DEPTH}, aliases expanded"
_REFUSED: Final = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]|\r(?!\n)|^%", re.MULTILINE
)
_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")  # in texts, where an escape brings them in
_NO_CHARACTER: Final = re.compile(r"\\U(?!000|0010)")
_TAG: Final = "tag:yaml.org,2002:"
_MAX_DIGITS: Final = 40
_NOT_FINITE: Final = re.compile(r"\.(?:inf|nan)", re.IGNORECASE)
_CORE: Final = {
    "null": re.compile(r"~|null|Null|NULL|"),
    "bool": re.compile(r"true|True|TRUE|false|False|FALSE"),
    "int": re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+"),
    "float": re.compile(
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
    ),
}
"""What plain scalars that are not text look like, by tag; the first that fits counts."""


_MAX_STATUS_BYTES: Final = 4096  # it travels in a trailer, whose readers take 8 KiB, as base64, beside the message
_MAX_FIELD: Final = 200
_MAX_SAID: Final = 200  # of the library's words, which may have a tag of any length in them
_MAX_PROBLEMS: Final = 1000
"""Problems that are looked for; a text may have thousands, and places take time."""
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
"""What pydantic's words are in a file's terms."""


class MalformedDefinition(InvalidArgument):
    """A workflow file can't be run. `diagnostics` are in the file's order; the first 50 at most are violations."""

    def __init__(self, diagnostics: Sequence[Diagnostic]) -> None:
        self.diagnostics = tuple(sorted(diagnostics, key=lambda one: (one.line, one.column)))
        sent: list[Violation] = []
        size = 0
        for diagnostic in self.diagnostics:
            violation = diagnostic.violation()
            size += sum(len(part.encode()) for part in violation)
            full = len(sent) == MAX_MISTAKES - 1 and len(diagnostics) > MAX_MISTAKES
            if sent and (full or size > _MAX_STATUS_BYTES):
                sent.append(Violation("definition", f"has {len(diagnostics) - len(sent)} more mistakes"))
                break
            sent.append(violation)
        super().__init__(*sent[0], others=sent[1:])


def load(text: str, variables: Mapping[str, str]) -> Definition:
    """Return the workflow that `text` says, with `variables` in place of the file's own values.

    `definition.variables` are final texts. Those of the run are texts, not templates: what looks like `${…}` in them
    stays. Raise MalformedDefinition with all mistakes that are found, in one of three steps: the text is YAML, the
    data has the schema's form, and what it says can be done. Pure and thread-safe; the largest file takes seconds, so
    a caller on an event loop gives it a thread.
    """
    source = read(text)
    try:
        definition = Definition.model_validate(source.data)
    except ValidationError as error:
        raise MalformedDefinition(
            [source.diagnostic(_of_schema(one)) for one in complaints(error, source.data)]
        ) from None
    mistakes = list(_of_run(variables, definition.variables, source))
    found = list(islice(variable_problems(definition.variables), _MAX_PROBLEMS))
    values = dict(definition.variables)
    if not found and not mistakes:
        values, found = resolved(definition.variables, variables)
    found += islice(chain(problems(definition), text_problems(definition, values)), _MAX_PROBLEMS)
    if found or mistakes:
        raise MalformedDefinition([*mistakes, *map(source.diagnostic, found)])
    return definition.model_copy(update={"variables": values})


def _of_schema(complaint: Complaint) -> Problem:
    message = _IN_YAML.get(complaint.kind, complaint.problem)
    if complaint.kind == "extra_forbidden" and (name := str(complaint.path[-1])) not in KEYS:
        return Problem(complaint.path, message, complaint.of_key, given=name, known=KEYS)
    return Problem(complaint.path, message, complaint.of_key)


def _of_run(given: Mapping[str, str], known: Mapping[str, str], source: "Source") -> Iterator[Diagnostic]:
    """Yield what is wrong with values that came with the run; they have no place in the file."""
    for name, value in given.items():
        field = _field(("variables", name))
        if name not in known:
            hint = source.hint(name, known)
            yield Diagnostic(field, f"is given for the run, but the file has no such variable{hint}")
        elif len(value) > MAX_TEXT:
            yield Diagnostic(field, f"must not be longer than {MAX_TEXT} characters")


class Source:
    """A file's data, and where each value of it stands."""

    def __init__(self, text: str, root: Node) -> None:
        """Make data of nodes. Raise MalformedDefinition for mistakes, and where a limit is passed."""
        self._text = text
        self._lines = [0, *(found.end() for found in re.finditer("\n", text))]
        self._nodes: dict[Path, Node] = {}
        self._keys: dict[Path, Node] = {}
        self._mistakes: list[Diagnostic] = []
        self._visited = self._characters = self._hints = 0
        self._farthest: Any = None
        """The mark that is farthest in the text: in an alias, where it is used and not where its parts are written."""
        self.data = self._value(root, ())
        if self._mistakes:
            raise MalformedDefinition(self._mistakes)

    def position(self, path: Path, *, of_key: bool = False, offset: int | None = None) -> tuple[int, int]:
        """Return line and column of the value at `path`, or of its key; or of the `${` at `offset` in its text.

        A value that is not written stands where its key is; an alias where it is used, its parts where they are
        written. Of what isn't there, it is as much of the path as is; where a `${` cannot be found, because an escape
        wrote it, the text's beginning.
        """
        while path not in self._nodes:
            path, of_key, offset = path[:-1], False, None
        node = self._nodes[path]
        if offset is not None and isinstance(node.value, str):
            start = node.start_mark.index
            written, meant = _references(self._text[start : node.end_mark.index]), _references(node.value)
            if len(written) == len(meant) and offset in meant:
                index = start + written[meant.index(offset)]
                line = bisect_right(self._lines, index)
                return line, index - self._lines[line - 1] + 1
        missing = node.start_mark.index == node.end_mark.index  # such a value stands where the next token is
        return _place((self._keys.get(path, node) if of_key or missing else node).start_mark)

    def diagnostic(self, problem: Problem) -> Diagnostic:
        """Return `problem` with its place."""
        place = self.position(problem.path, of_key=problem.of_key, offset=problem.offset)
        hint = self.hint(problem.given, problem.known) if problem.known else ""
        return Diagnostic(_field(problem.path), problem.message + hint, *place)

    def hint(self, given: str, known: Collection[str]) -> str:
        """Return what may have been meant by a name; of a long name, or of many mistakes, nothing: it takes time."""
        if len(given) > _MAX_HINTED or self._hints == MAX_MISTAKES:
            return ""
        self._hints += 1
        return did_you_mean(given, islice(known, _MAX_KNOWN))

    def _value(self, node: Node, path: Path) -> Any:
        self._nodes[path] = node
        if isinstance(node, ScalarNode):
            return self._scalar(node, path)
        self._count(node, 0)
        if len(path) >= MAX_DEPTH:
            raise _malformed(_TOO_DEEP, *_place(self._farthest))
        if isinstance(node, SequenceNode):
            self._check_tag(node, "seq", path)
            return [self._value(one, (*path, index)) for index, one in enumerate(node.value)]
        self._check_tag(node, "map", path)
        made: dict[str, Any] = {}
        for key, value in node.value:
            name = self._scalar(key, path) if isinstance(key, ScalarNode) else None
            if not isinstance(name, str):
                self._mistake("has a key that is no text; write it in quotes", key, path)
            elif name == "<<" and not key.style:
                self._mistake("has a merge key (<<), which is not supported; use an alias as a whole value", key, path)
            elif name in made:
                self._mistake("is given more than once", key, (*path, name))
            else:
                self._keys[(*path, name)] = key
                made[name] = self._value(value, (*path, name))
        return made

    def _scalar(self, node: ScalarNode, path: Path) -> Any:
        text: str = node.value
        self._count(node, len(text))
        tag = (node.tag or "").removeprefix(_TAG)
        if tag in _CORE and not (_CORE[tag].fullmatch(text) or (tag == "float" and _CORE["int"].fullmatch(text))):
            self._mistake(f"is not written as the tag !!{tag} says", node, path)
            return None
        match tag:
            case "null":
                return None
            case "bool":
                return text.lower() == "true"
            case "int" | "float" if len(text) > _MAX_DIGITS:
                self._mistake("is a number that is out of range", node, path)
            case "int":
                return int(text, 0) if text.startswith(("0o", "0x")) else int(text)
            case "float":
                if not math.isfinite(value := float(_NOT_FINITE.sub("inf", text))):
                    self._mistake("must be a finite number; write it in quotes if it is text", node, path)
                return value
            case "str" if _CONTROL.search(text):
                self._mistake("must not have control characters, save tabs and line feeds", node, path)
            case _:
                self._check_tag(node, "str", path)
        return text

    def _check_tag(self, node: Node, kind: str, path: Path) -> None:
        if node.tag != _TAG + kind:
            self._mistake("has a tag (!) that is not supported; leave it out", node, path)

    def _count(self, node: Node, characters: int) -> None:
        mark = node.start_mark
        if self._farthest is None or mark.index > self._farthest.index:
            self._farthest = mark
        self._visited += 1
        self._characters += characters
        if self._visited > MAX_NODES:
            raise _malformed(_TOO_MANY, *_place(self._farthest))
        if self._characters > MAX_BYTES:
            raise _malformed("must not be longer than 1 MiB, aliases expanded", *_place(self._farthest))

    def _mistake(self, problem: str, node: Node, path: Path) -> None:
        self._mistakes.append(Diagnostic(_field(path), problem, *_place(node.start_mark)))
        if len(self._mistakes) > MAX_MISTAKES:
            raise MalformedDefinition(self._mistakes)


def read(text: str) -> Source:
    """Return `text` as data, at a cost within the limits, whatever the text is. Raise MalformedDefinition."""
    text = text.removeprefix("\ufeff")
    if len(text) > MAX_BYTES or len(text.encode(errors="surrogatepass")) > MAX_BYTES:
        raise MalformedDefinition([Diagnostic("definition", "must not be longer than 1 MiB", 1, 1)])
    if refused := _REFUSED.search(text):
        problem = (
            f"must not have the character U+{ord(refused[0]):04X}; in double quotes it may be written as an escape"
        )
        if refused[0] == "%":
            problem = "is YAML 1.2 without directives: no line may begin with %"
        elif "\ud800" <= refused[0] <= "\udfff":
            problem = "must be well-formed Unicode (it has a lone surrogate)"
        raise _malformed(problem, *_position(text, refused.start()))
    yaml = YAML(typ="safe", pure=True)
    yaml.max_depth = MAX_DEPTH + 1  # it counts scalars, too
    yaml.Composer, yaml.Resolver = _Composer, _CoreSchema
    try:
        root = yaml.compose(text)
    except MaxDepthExceededError as error:
        raise _malformed(_TOO_DEEP, *_place(error.problem_mark)) from None
    except MarkedYAMLError as error:
        said = ", ".join(part for part in (error.context, error.problem) if part)
        raise _malformed(
            f"is not YAML: {said[:_MAX_SAID]}", *_place(error.problem_mark or error.context_mark)
        ) from None
    except (ValueError, OverflowError):  # the scanner makes a character of any escape
        found = _NO_CHARACTER.search(text)
        place = _position(text, found.start() if found else 0)
        raise _malformed("is not YAML: has an escape (\\U) of what is no character", *place) from None
    if root is None:
        raise _malformed("is empty", 1, 1)
    return Source(text, root)


class _CoreSchema(VersionedResolver):  # type: ignore[misc]
    """Says what plain scalars are by YAML 1.2's core schema; the library's own has dates, binary numbers and more."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        if kind is ScalarNode and implicit[0]:
            return Tag(suffix=_TAG + next((tag for tag, looks in _CORE.items() if looks.fullmatch(value)), "str"))
        return super().resolve(kind, value, (False, False))


class _Composer(Composer):  # type: ignore[misc]
    """Composes nodes, with aliases where they are used, until there are more than MAX_NODES."""

    def __init__(self, loader: Any = None) -> None:
        super().__init__(loader)
        self.warn_double_anchors = False
        self._composed = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.parser.peek_event()
        self._composed += 1
        if self._composed > MAX_NODES:
            raise _malformed(_TOO_MANY, *_place(event.start_mark))
        if not isinstance(event, AliasEvent):
            return super().compose_node(parent, index)
        known = self.anchors.get(event.anchor)
        if known is None:
            problem = "is an alias (*) of what has no such anchor (&) before it"
            raise _malformed(problem, *_place(event.start_mark))
        if known.end_mark is None:
            raise _malformed("is an alias (*) that contains itself", *_place(event.start_mark))
        self.parser.get_event()
        node = copy(known)
        node.start_mark, node.end_mark = event.start_mark, event.end_mark
        return node


def _malformed(problem: str, line: int, column: int) -> MalformedDefinition:
    return MalformedDefinition([Diagnostic("definition", problem, line, column)])


def _place(mark: Any) -> tuple[int, int]:
    return mark.line + 1, mark.column + 1


def _references(text: str) -> list[int]:
    return [found.start() for found in re.finditer(r"\$\{", text)]


def _position(text: str, index: int) -> tuple[int, int]:
    return text.count("\n", 0, index) + 1, index - text.rfind("\n", 0, index)


def _field(path: Path) -> str:
    """Return `path` as `phases[0].center`; "definition" for the whole file."""
    text = dotted(path, "definition")
    return text if len(text) <= _MAX_FIELD else text[:_MAX_FIELD] + "…"
