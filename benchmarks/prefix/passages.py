"""Realistic text that is on every machine, and the same for one version of Python: its documentation and sources."""

import argparse
import asyncio.base_events
import email.message
import inspect
import json.decoder
import json.encoder
import logging
import pydoc_data.topics
import textwrap
from collections.abc import Sequence
from functools import cache
from random import Random
from types import ModuleType

_MODULES: Sequence[ModuleType] = (argparse, asyncio.base_events, email.message, json.decoder, json.encoder, logging)
OTHERS = (
    "Die Größe der Straße ändert sich natürlich nicht, auch wenn man sie müßig entlanggeht – oder doch?",
    "東京は日本の首都です。人口は約1400万人で、世界最大の都市圏の一部です。",
    "Привет! Как дела? Завтра в 9:30 встречаемся у входа, не забудь взять с собой паспорт.",
    "L'été dernier, à Besançon, j'ai mangé des pâtes à l'œuf ; c'était très bon, n'est-ce pas ?",
    "그 회의는 내일 오후 세 시에 시작합니다. 자료는 미리 보내 드리겠습니다.",
    "👩‍💻 shipped it 🚀🚀, then 🙂 and a naïve café ☕️ – price: €12,50 / £10.99",
    "مرحبا بالعالم، هذا نص قصير لاختبار المحارف.",
)
OPENINGS = ("Sure!", "Yes.", "Here is what I found:", "In short:", "That depends.", "No problem —", "1. First,", "Hm,")
EDGES = ("", "", "", "", "\n", "\n\n", " ", "  ", "\t", "…")
"""What an answer or a message may begin or end with."""


@cache
def prose() -> Sequence[str]:
    """Paragraphs of the language reference."""
    paragraphs = (part for text in pydoc_data.topics.topics.values() for part in str(text).split("\n\n"))
    return [part for part in paragraphs if 80 < len(part) < 1200]


@cache
def code() -> Sequence[str]:
    """Functions of the standard library."""
    found = []
    for module in _MODULES:
        for _, item in inspect.getmembers(module, lambda item: inspect.isfunction(item) or inspect.isclass(item)):
            if item.__module__ == module.__name__:
                found += [textwrap.dedent(part) for part in inspect.getsource(item).split("\n\n") if len(part) > 60]
    return [each for each in found if len(each) < 1200]


def corpus() -> Sequence[str]:
    """All of it, to train a tokenizer on."""
    return [*prose(), *code(), *OTHERS * 8]


def passage(random: Random) -> str:
    """One piece: mostly prose, some code, numbers and other languages."""
    kind = random.random()
    if kind < 0.5:
        return random.choice(prose())
    if kind < 0.75:
        return f"```python\n{random.choice(code())}\n```"
    if kind < 0.88:
        return random.choice(OTHERS)
    rows = range(random.randrange(2, 8))
    return "\n".join(f"| {random.randrange(10**7)} | {random.uniform(-1e3, 1e3):.4f} | {row:>6} |" for row in rows)


def message(random: Random, passages: int) -> str:
    """Some pieces, with white space at the edges now and then."""
    body = "\n\n".join(passage(random) for _ in range(passages))
    return random.choice(EDGES) + body + random.choice(EDGES)


def answer(random: Random, passages: int) -> str:
    """What a model might say."""
    body = "\n\n".join([random.choice(OPENINGS), *(passage(random) for _ in range(passages))])
    return random.choice(EDGES) + body + random.choice(EDGES)
