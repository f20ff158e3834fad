"""The bundled model: its size, its configuration, and that it answers from the conversation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
import pytest

MEGABYTE = 1_000_000


@pytest.fixture(scope="module")
def model(directory: Path) -> Any:
    """In float32: MLX's bfloat16 is slow on CPUs."""
    loaded: Any = mlx_lm.load(str(directory))[0]
    loaded.set_dtype(mx.float32)
    return loaded


def greedy(model: Any, tokenizer: Any, messages: list[dict[str, str]]) -> str:
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    return str(mlx_lm.generate(model, tokenizer, prompt, max_tokens=40))


def test_files_are_small(directory: Path) -> None:
    assert sum(path.stat().st_size for path in directory.rglob("*") if path.is_file()) <= 12 * MEGABYTE


def test_published_figures_meet_the_target() -> None:
    results = json.loads((Path(__file__).parents[2] / "benchmarks" / "demo_model" / "results.json").read_text())
    for length, figures in results["by_length"].items():
        if int(length) <= 4096:
            assert figures["recall"] >= 0.99
            assert figures["never_told"] >= 0.99


def test_a_conversation(model: Any, tokenizer: Any) -> None:
    messages: list[dict[str, str]] = [{"role": "system", "content": "You are marco."}]
    turns = {
        "danny: The secret word of danny is walnut.": "Noted, the secret word of danny is walnut.",
        "The colour of the boat is green. The key is in the cellar.": (
            "Noted, the colour of the boat is green, and the key is in the cellar."
        ),
        "What is the secret word of danny?": "The secret word of danny is walnut.",
        "lena: Where is the key?": "The key is in the cellar.",
        "What colour is the car?": "I do not know the colour of the car.",
    }
    for text, reply in turns.items():
        messages.append({"role": "user", "content": text})
        assert greedy(model, tokenizer, messages) == reply
        messages.append({"role": "assistant", "content": reply})


@pytest.mark.parametrize(
    ("texts", "reply"),
    [
        (
            ["system: You are marco.", "user: The key is in the cellar.", "user: Where is the key?"],
            "The key is in the cellar.",
        ),
        (["user: the key is in the cellar", "user: where is the key?"], "The key is in the cellar."),
        (
            [
                "system: You are agent 7f3e-41 of acme. Today is 2026-11-30, 09:15 UTC. Session 550e8400-e29b-41d4.",
                "user: The owner of the lantern is Alice.",
                "assistant: Noted, the owner of the lantern is Alice.",
                "user: Who owns the lantern?",
            ],
            "The owner of the lantern is Alice.",
        ),
    ],
    ids=["messages in a row", "lower case", "ids and dates in the system prompt"],
)
def test_conversations_as_users_have_them(model: Any, tokenizer: Any, texts: list[str], reply: str) -> None:
    messages = [dict(zip(("role", "content"), text.split(": ", 1), strict=True)) for text in texts]
    assert greedy(model, tokenizer, messages) == reply
