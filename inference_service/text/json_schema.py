"""Supported JSON Schemas, and errors for others, which never quote them. Pure."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from agentmem.errors import InvalidArgument

FIELD = "json_schema"
FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")

_KEYWORDS = frozenset(
    re.findall(
        r"\S+",
        """
        $anchor $defs $dynamicAnchor $dynamicRef $id $recursiveAnchor $recursiveRef $ref $schema additionalItems
        additionalProperties allOf anyOf const contains definitions dependencies dependentRequired dependentSchemas else
        enum exclusiveMaximum exclusiveMinimum format id if items maxContains maxItems maxLength maxProperties maximum
        minContains minItems minLength minProperties minimum multipleOf not oneOf pattern patternProperties prefixItems
        properties propertyNames required then type unevaluatedItems unevaluatedProperties uniqueItems
        """,
    )
)

_PROBLEMS = (
    ("format:", f"has a format that cannot be honoured; {', '.join(FORMATS)} can"),
    ("regex parse error", "has a pattern that cannot be honoured; it may have no look-around and no back-reference"),
    ("unable to determine if regex", "joins pattern, enum and lengths in a way that is too complex; use fewer of them"),
    ("unsatisfiable", "is fitted by no JSON; take out what contradicts itself"),
    ("oneof constraints", "has a oneOf whose options are not told apart by a constant property; use anyOf"),
    ("circular references", "has a $ref to itself with keywords beside it; put the $ref alone"),
    ("retriev", "refers to another document by $ref, $id or $schema; put all definitions into $defs"),
    ("does not exist", "has a $ref to what is not there"),
    ("min/maxproperties", "has minProperties or maxProperties beside properties that are not all required"),
    ("patternproperty", "has patternProperties that can match the same name; make them disjoint"),
    ("invalid type", "has a type that is none of JSON's"),
    ("invalid multiple", "has a multipleOf that is not a positive number"),
)
_TOO_COMPLEX = "is too complex to be honoured; make it smaller, with fewer optional properties and shorter patterns"


def check(schema: Mapping[str, Any], field: str = FIELD) -> None:
    """Raise InvalidArgument for keywords that a grammar would ignore."""
    if "x-guidance" in schema:
        raise InvalidArgument(field, "x-guidance cannot be set; take it out")
    for part in _objects(schema):
        least, draft4 = part.get("minProperties"), [part.get("exclusiveMinimum"), part.get("exclusiveMaximum")]
        required = part.get("required")
        names = len({str(name) for name in required}) if isinstance(required, list) else 0
        # Other names may be equal, which JSON counts once.
        if isinstance(least, int | float) and least > names + 1:
            raise InvalidArgument(field, "minProperties cannot be honoured above the number of required ones and one")
        if any(isinstance(value, bool) for value in draft4):
            raise InvalidArgument(field, "exclusiveMinimum and exclusiveMaximum must be numbers")


def problem(error: str, field: str = FIELD) -> InvalidArgument:
    if found := re.search(r"Unimplemented keys: \[(.*?)\]", error):
        names = sorted(_KEYWORDS & set(re.findall(r'"([^"]*)"', found[1])))
        return InvalidArgument(field, f"{', '.join(names) or 'a keyword'} cannot be honoured; take it out")
    lower = error.lower()
    for sign, text in _PROBLEMS:
        if sign in lower:
            return InvalidArgument(field, text)
    found = re.match(r"(?:Expected [\w ]+ for )?'?([$\w]+)'?(?:,| must be| item)", error)
    if found and found[1] in _KEYWORDS:
        return InvalidArgument(field, f"{found[1]} has a value of the wrong kind")
    if re.search(r"too (big|large|many|complex)|fuel|max is|limit|NoExtension", error):
        return InvalidArgument(field, _TOO_COMPLEX)
    return InvalidArgument(field, "cannot be honoured; use a JSON Schema of draft 2020-12 with simpler keywords")


def too_complex(field: str = FIELD) -> InvalidArgument:
    return InvalidArgument(field, _TOO_COMPLEX)


def _objects(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield all JSON objects, also of properties named like keywords."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _objects(item)
