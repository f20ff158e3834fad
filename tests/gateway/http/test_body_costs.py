"""No body, good or bad, costs the gateway more than a few seconds, some memory, and a moment of other callers."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import pytest

from ..hostile_bodies import KINDS, filler, with_filler
from ..measured import Cost, MeasuredGateway, measured_gateway
from .test_fuzz import ENDPOINTS, Endpoint

LONGEST: Final = 16 * 1024 * 1024
SIZES: Final = (LONGEST, 2 * 1024 * 1024, 512 * 1024)
"""The smaller ones are read, where the longest is refused for its many parts."""

MOST: Final = Cost(seconds=5.0, grown=300_000_000, waited=1.0)

HI: Final[dict[str, Any]] = {"model": "demo", "messages": [{"role": "user", "content": "hi"}]}
CHAT: Final = "/v1/chat/completions"
AGENT: Final = "/v1/agents/a/{}?model=demo"


def element(outer: str, inner: str, kind: str, size: int) -> bytes:
    """A body of REST with a filler inside of one field."""
    return b'{"%b": {"%b": %b}}' % (outer.encode(), inner.encode(), filler(kind, size))


def text_of_json(size: int) -> bytes:
    messages = {"messages": HI["messages"], "tools_json": filler("empty lists", size).decode()}
    return json.dumps({"messages": messages}).encode()


NAMED: Final = {"model": "demo"}
SEEDS: Final = {
    "ones for messages": (CHAT, partial(with_filler, HI, "messages", "ones", LONGEST)),
    "as many messages as are taken": (CHAT, partial(with_filler, HI, "messages", "messages", 960_000)),
    "as many bad messages": (CHAT, partial(with_filler, HI, "messages", "bad messages", 860_000)),
    "a text of the widest characters": (CHAT, partial(with_filler, HI, "user", "wide text", LONGEST)),
    "unknown members": (CHAT, partial(with_filler, HI, "metadata", "members", 50_000)),
    "copies of a long prompt": (
        "/v1/completions",
        partial(with_filler, {**NAMED, "n": 16}, "prompt", "escapes", LONGEST),
    ),
    "a million token ids": ("/v1/completions", partial(with_filler, NAMED, "prompt", "token ids", 7_000_000)),
    "empty lists for input": ("/v1/responses", partial(with_filler, NAMED, "input", "empty lists", LONGEST)),
    "numbers for a tool": (
        "/v1/messages",
        partial(with_filler, {**HI, "max_tokens": 1}, "chat_template_kwargs", "floats", LONGEST),
    ),
    "token ids over REST": (AGENT.format("generate"), partial(element, "token_ids", "ids", "token ids", 7_000_000)),
    "JSON inside of JSON": (AGENT.format("generate"), partial(text_of_json, 12_000_000)),
    "a workflow of numbers": ("/v1/workflows/check", partial(with_filler, {}, "definition_yaml", "yaml", 1024 * 1024)),
}


@pytest.fixture(scope="module")
def gateway() -> Iterator[MeasuredGateway]:
    with measured_gateway() as running:
        yield running


def assert_cheap(gateway: MeasuredGateway, method: str, url: str, body: bytes) -> None:
    answer, cost = gateway.measured(method, url, body)
    told = f"{answer.status_code} {answer.text[:200]} {cost}"
    assert answer.status_code not in (500, 502), told
    assert all(taken < most for taken, most in zip(cost, MOST, strict=True)), told


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_dear(gateway: MeasuredGateway, seed: str) -> None:
    url, body = SEEDS[seed]
    assert_cheap(gateway, "POST", url, body())


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda one: f"{one.method} {one.url.partition('?')[0]}")
def test_a_long_value_anywhere(gateway: MeasuredGateway, endpoint: Endpoint, kind: str) -> None:
    rng = random.Random(f"{endpoint.url} {kind}")
    for size in SIZES:
        body = with_filler(endpoint.body, rng.choice([*endpoint.fields, "unheard_of"]), kind, size)
        assert_cheap(gateway, endpoint.method, endpoint.url, body)
