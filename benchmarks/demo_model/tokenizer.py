"""The demo model's tokenizer: byte-level BPE, so that any text round-trips, with every word of the world one token.

    python -m benchmarks.demo_model.tokenizer OUTPUT_DIRECTORY
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from benchmarks.demo_model import filler
from benchmarks.demo_model.dialogues import Message, make_dialogue
from benchmarks.demo_model.world import KINDS

VOCABULARY = 3072
CONTEXT = 8192
BOS, START, END, PAD = "<|bos|>", "<|im_start|>", "<|im_end|>", "<|pad|>"
SPECIAL_TOKENS = (BOS, START, END, PAD)
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def render(messages: list[Message]) -> str:
    """What the chat template renders, without Jinja: training renders some ten thousand dialogues a second."""
    return BOS + "".join(f"{START}{message['role']}\n{message['content']}{END}\n" for message in messages)


def _corpus() -> Iterator[str]:
    """Every word of the world with and without a space before it, often enough to be merged, then whole dialogues."""
    words = {word for kind in KINDS for word in (*kind.entities, *kind.values)}
    for part in (filler.SUBJECTS, filler.VERBS, filler.TOPICS, filler.TIMES, filler.REMARKS):
        words.update(word.strip(".,") for phrase in part for word in phrase.split())
    text = " " + " ".join(sorted(words))
    for _ in range(200):
        yield text
    for seed in range(400):
        yield "\n".join(message["content"] for message in make_dialogue(seed, 1024, split="train").messages)
        yield "system\nuser\nassistant\n" * 10


def train_tokenizer() -> Tokenizer:
    """A tokenizer trained on generated text alone; the same one every time."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    return tokenizer


def write_tokenizer(directory: Path) -> Tokenizer:
    """Train the tokenizer and write it with its configuration and chat template."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer()
    tokenizer.save(str(directory / "tokenizer.json"))
    named = {"bos_token": BOS, "eos_token": END, "pad_token": PAD}
    config = {
        **named,
        "added_tokens_decoder": {
            str(tokenizer.token_to_id(token)): {
                "content": token,
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": True,
            }
            for token in SPECIAL_TOKENS
        },
        "additional_special_tokens": [START],
        "add_bos_token": False,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONTEXT,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    write_json(directory / "tokenizer_config.json", config)
    write_json(directory / "special_tokens_map.json", {**named, "additional_special_tokens": [START]})
    return tokenizer


def write_json(path: Path, content: object) -> None:
    """Readable JSON with a newline at the end."""
    path.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train the demo model's tokenizer.")
    parser.add_argument("directory", type=Path)
    print(write_tokenizer(parser.parse_args().directory).get_vocab_size(), "tokens")
