"""The real language model's text side and texts, or a skip that says why they cannot be had."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest

from benchmarks import smollm2
from benchmarks.packages import Unavailable
from benchmarks.quality.texts import KINDS
from inference_service.domain import MessagesInput
from inference_service.models.opening import ModelSpec, ModelText, open_text
from inference_service.text.template import Template


def text() -> ModelText:
    """Its tokenizer and template; `KINDS` can be had, too."""
    if problem := _problem():
        pytest.skip(problem)
    return _text(smollm2.directory())


def render(messages: Sequence[Mapping[str, str]], answered: bool) -> str:
    """By its chat template."""
    return Template(text().template).render(MessagesInput(tuple(messages)), generation_prompt=answered)


@cache
def _problem() -> str:
    try:
        smollm2.directory()
        for kind in KINDS:
            kind.paths()
    except Unavailable as problem:
        return str(problem)
    return ""


@cache
def _text(directory: Path) -> ModelText:
    return open_text(ModelSpec("smollm2", directory))
