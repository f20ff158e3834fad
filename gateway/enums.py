"""Values of the contract's enums as JSON and tables have them: lower-case, without the enum's name ("hot")."""

from functools import cache

from google.protobuf.descriptor import EnumDescriptor


@cache
def short_names(enum: EnumDescriptor) -> dict[int, str]:
    """The short names of an enum's values, by number; 0 has none."""
    prefix = enum.values_by_number[0].name.removesuffix("UNSPECIFIED")
    return {value.number: value.name.removeprefix(prefix).lower() for value in enum.values if value.number}


def short_name(enum: EnumDescriptor, number: int) -> str:
    """The short name of a value; empty where nothing is said, or what only a newer worker knows."""
    return short_names(enum).get(number, "")
