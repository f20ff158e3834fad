"""Seeded damage of files: what disks do, and what headers can lie about."""

import json
import random
import struct
from collections.abc import Callable
from typing import Any

PAGE = 4096
Mutation = Callable[[random.Random, bytes, bytes], bytes]
"""From the bytes, and those of another file, to what is there instead."""


def flip_a_bit(rng: random.Random, data: bytes, other: bytes) -> bytes:
    place = rng.randrange(len(data) * 8)
    return _replaced(data, place // 8, bytes([data[place // 8] ^ 1 << place % 8]))


def flip_bits(rng: random.Random, data: bytes, other: bytes) -> bytes:
    for _ in range(rng.randint(2, 30)):
        data = flip_a_bit(rng, data, other)
    return data


def truncate(rng: random.Random, data: bytes, other: bytes) -> bytes:
    return data[: rng.randrange(len(data))]


def extend(rng: random.Random, data: bytes, other: bytes) -> bytes:
    return data + rng.randbytes(rng.randint(1, 2 * PAGE))


def zero_a_page(rng: random.Random, data: bytes, other: bytes) -> bytes:
    start = rng.randrange(-(-len(data) // PAGE)) * PAGE
    return _replaced(data, start, bytes(min(PAGE, len(data) - start)))


def swap(rng: random.Random, data: bytes, other: bytes) -> bytes:
    return other


def swap_a_page(rng: random.Random, data: bytes, other: bytes) -> bytes:
    start = rng.randrange(-(-len(data) // PAGE)) * PAGE
    return _replaced(data, start, other[start : start + PAGE][: len(data) - start])


def scribble(rng: random.Random, data: bytes, other: bytes) -> bytes:
    start = rng.randrange(len(data))
    return _replaced(data, start, rng.randbytes(min(rng.randint(1, 600), len(data) - start)))


def swap_two_pages(rng: random.Random, data: bytes, other: bytes) -> bytes:
    one, two = (rng.randrange(len(data) // PAGE) * PAGE for _ in range(2))
    first, second = data[one : one + PAGE], data[two : two + PAGE]
    return _replaced(_replaced(data, one, second), two, first)


def another_header_length(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """The first 8 bytes say how long a safetensors header is."""
    size = rng.choice([0, 1, 7, len(data), 2**31, 2**62, 2**63, 2**64 - 1, rng.randrange(2**64), rng.randrange(2000)])
    return struct.pack("<Q", size) + data[8:]


_LIES: list[Any] = [
    *(0, -1, 1, 2**31, 2**63, 2**64, 10**30, 1.5, True, None, "", "0", [], {}, "\ud800", "x" * 9000, [2**40] * 4),
    *([0, 2**62], [-1, 10], [10, 5], [1, 1, 1], ["a", "b"], [[]], {"a": 1}, "U32", "F64", "1e3", "ff" * 32),
]


def lie(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """One value of a safetensors header is another one."""
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    place: Any = header
    for _ in range(rng.randint(0, 1)):
        place = place[rng.choice(sorted(place))]
    key = rng.choice(sorted(place))
    if rng.random() < 0.1:
        del place[key]
    elif isinstance(place[key], list) and rng.random() < 0.7:
        place[key][rng.randrange(len(place[key]))] = rng.choice(_LIES)
    else:
        place[key] = rng.choice(_LIES)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data[8 + size :]


ANYWHERE: tuple[Mutation, ...] = (flip_a_bit, flip_bits, truncate, extend, zero_a_page, swap, swap_a_page, scribble)
BLOCK_FILE: tuple[Mutation, ...] = (*ANYWHERE, another_header_length, lie, lie, lie)
DATABASE: tuple[Mutation, ...] = (*(each for each in ANYWHERE if each is not swap), swap_two_pages)


def _replaced(data: bytes, start: int, piece: bytes) -> bytes:
    return data[:start] + piece + data[start + len(piece) :]
