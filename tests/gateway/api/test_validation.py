from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, ValidationError

from gateway.api.complaints import Complaint, complaints, deepest, dotted
from gateway.api.validation import Strict


class Cat(Strict):
    kind: Literal["cat"]
    lives: int


class Dog(Strict):
    kind: Literal["dog"]
    name: Annotated[str, Field(max_length=3)]


class Zoo(Strict):
    pets: list[Annotated[Cat | Dog, Field(discriminator="kind")]] = Field(default=[])
    food: Annotated[str, Field(max_length=3)] | dict[Annotated[str, Field(pattern="^[a-z]+$")], str] = ""
    open: bool = True


def wrong(data: dict[str, Any]) -> list[Complaint]:
    with pytest.raises(ValidationError) as caught:
        Zoo.model_validate(data)
    return complaints(caught.value, data)


def test_each_place_is_told_once() -> None:
    found = wrong({"pets": [{"kind": "cat", "lives": "9", "x": 1}, {"kind": "dog"}], "open": 3, "shut": 1})
    assert [(one.path, one.kind, one.of_key) for one in found] == [
        (("pets", 0, "lives"), "int_type", False),
        (("pets", 0, "x"), "extra_forbidden", True),
        (("pets", 1, "name"), "missing", False),
        (("open",), "bool_type", False),
        (("shut",), "extra_forbidden", True),
    ]


@pytest.mark.parametrize(
    ("food", "path", "kind", "of_key"),
    [
        (3, ("food",), "string_type", False),
        ("long", ("food",), "string_too_long", False),  # the dict's branch says only that it is none
        ({"a": 1}, ("food", "a"), "string_type", False),
        ({"A": "x"}, ("food", "A"), "string_pattern_mismatch", True),
    ],
)
def test_of_a_union_the_branch_that_was_meant_speaks(food: Any, path: Any, kind: str, of_key: bool) -> None:
    (found,) = wrong({"food": food})
    assert (found.path, found.kind, found.of_key) == (path, kind, of_key)


def test_a_union_without_its_kind() -> None:
    found = wrong({"pets": [{"lives": 3}, {"kind": "cow"}]})
    assert [(one.path, one.problem) for one in found] == [
        (("pets", 0, "kind"), "is required"),
        (("pets", 1, "kind"), "is not supported here; supported are cat, dog"),
    ]


def test_the_deepest_is_told_where_one_can_be() -> None:
    assert deepest(wrong({"open": 3, "pets": [{"kind": "cat", "lives": "9"}]})).path == ("pets", 0, "lives")
    assert deepest(wrong({"open": 3, "food": "long"})).path == ("food",)


def test_paths_as_texts() -> None:
    assert dotted(("a", 0, "b", "*"), "body") == "a[0].b.*"
    assert dotted((), "body") == "body"
    assert dotted(("a", "what was said"), "body") == "a.(a name)"
