"""A model that says what it is told to, for tests of what becomes of an answer: weights made by hand, all else real.

A Llama whose attention and MLPs add nothing, so that the next token depends on the present one only: a table of pairs.
What it says follows from the last token of the prompt, a cue that the chat template chooses: by whether there are
tools, whether the last message is a tool's, and by single words of the last user message.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models import llama
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.tiny_models import BOS, END, START, save_tokenizer

CHAT, CALL, BOTH, BROKEN, ANSWER = "<|chat|>", "<|call|>", "<|both|>", "<|broken|>", "<|answer|>"
MARKERS = "<tool_call>", "</tool_call>"
SCRIPT = {
    CHAT: ["Nobody", " knows", "."],
    CALL: [
        "I",
        " look",
        ".\n",
        MARKERS[0],
        '{"name": "get_',
        'weather", "arguments"',
        ': {"city": "Pa',
        'ris"}}',
        MARKERS[1],
    ],
    BOTH: [
        "<tool",
        '_call>{"name": "get_time", "arguments": {}}</tool_ca',
        "ll>\n<",
        'tool_call>{"name": "get_weather", "arguments": {"city": "Rome", "days": 2}}<',
        "/tool_call>",
    ],
    BROKEN: ["Well", ", ", '<tool_call>{"name": get_', "weather}</tool_call>", "!"],
    ANSWER: ["It", " rains", " in", " Paris", "!"],
}
"""Tokens after each cue, up to the end of the turn. No token may have two successors."""

TEMPLATE = (
    "<|bos|>{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n"
    "{% endif %}{% set ns = namespace(cue='<|chat|>') %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'user' %}{% set ns.cue = '<|chat|>' if not tools else '<|both|>' if 'both' in m.content else "
    "'<|broken|>' if 'broken' in m.content else '<|call|>' %}{% endif %}"
    "{% if m.role == 'tool' %}{% set ns.cue = '<|answer|>' %}{% endif %}"
    "{% if m.role == 'assistant' %}{{ ns.cue }}{% endif %}{{ m.content }}"
    "{% for tool_call in m.tool_calls %}{% set tool_call = tool_call.function %}"
    "{% if m.content or not loop.first %}{{ '\n' }}{% endif %}"
    '<tool_call>{"name": "{{ tool_call.name }}", "arguments": {{ tool_call.arguments | tojson }}}</tool_call>'
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{{ ns.cue }}{% endif %}"
)
"""Renders tools, calls and results; the arguments must be objects, or they come out quoted."""

MUSE = "<|muse|>"
TAGS = "<think>", "</think>"
THOUGHT, SAID = "I muse.", "It is calm 🌊!"
THINKING_SCRIPT = {MUSE: [TAGS[0], "\nI", " muse", ".\n", TAGS[1], "\n\nIt", " is", " calm", " 🌊", "!"]}
THINKING_TEMPLATE = (
    "<|bos|>{% set ns = namespace(asked=0) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.asked = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}<|muse|>"
    "{% if m.reasoning_content and loop.index0 > ns.asked %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<|muse|>{% endif %}"
)
"""As Qwen 3's: reasoning before the last question of the user is left out."""
OPENING_TEMPLATE = THINKING_TEMPLATE.removesuffix("{% endif %}") + "<think>{% endif %}"
"""As that of DeepSeek R1 and of Qwen 3's thinking models: the prompt opens the reasoning."""


def write_thinking(directory: Path, template: str = THINKING_TEMPLATE) -> Path:
    """A model that thinks THOUGHT and says SAID. The tags are tokens, and as Qwen's no special ones."""
    return write_scripted(directory, template=template, script=THINKING_SCRIPT, tags=TAGS)


def write_scripted(
    directory: Path,
    *,
    special_markers: bool = False,
    template: str = TEMPLATE,
    script: Mapping[str, Sequence[str]] = SCRIPT,
    tags: Sequence[str] = (),
    words: Sequence[str] = (),
    context: int = 4096,
) -> Path:
    """The model in the Hugging Face layout. `special_markers` makes the markers of calls special tokens.

    `tags` of the script are added tokens that are not special. Of `words`, a text in pieces, the most frequent ones
    become tokens, so that long prompts have fewer.
    """
    directory.mkdir(parents=True, exist_ok=True)
    ids = _write_tokenizer(directory, MARKERS if special_markers else (), template, script, tags, words)
    vocabulary = 1 + max(ids.values())
    size = -(-vocabulary // 64) * 64
    config = {
        "model_type": "llama",
        "hidden_size": size,
        "num_hidden_layers": 2,
        "intermediate_size": 64,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "rms_norm_eps": 1e-5,
        "vocab_size": vocabulary,
        "max_position_embeddings": context,
        "tie_word_embeddings": False,
        "rope_theta": 10000.0,
        "bos_token_id": ids[BOS],
        "eos_token_id": ids[END],
    }
    (directory / "config.json").write_text(json.dumps(config))
    mx.random.seed(0)
    model = llama.Model(llama.ModelArgs.from_dict(config))
    weights = dict(tree_flatten(model.parameters()))
    for name, value in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weights[name] = mx.zeros_like(value)
    weights["model.embed_tokens.weight"] = mx.eye(vocabulary, size)
    # Of `size` numbers that the norm makes one of sqrt(size); times four is far above all the others' zero.
    weights["lm_head.weight"] = 4.0 * _successors(script, ids, vocabulary, size)
    mx.save_safetensors(str(directory / "model.safetensors"), weights)
    return directory


def _successors(script: Mapping[str, Sequence[str]], ids: dict[str, int], vocabulary: int, size: int) -> mx.array:
    """[vocabulary, size]: 1 where a token follows the one whose number the column is. By default the turn ends."""
    following: dict[int, int] = {}
    for cue, tokens in script.items():
        for token, successor in pairwise([cue, *tokens, END]):
            followed_by = following.setdefault(ids[token], ids[successor])
            assert followed_by == ids[successor], f"{token!r} has two successors"
    table = [[0.0] * size for _ in range(vocabulary)]
    for token in range(vocabulary):
        table[following.get(token, ids[END])][token] = 1.0
    return mx.array(table)


def _write_tokenizer(
    directory: Path,
    markers: Sequence[str],
    template: str,
    script: Mapping[str, Sequence[str]],
    tags: Sequence[str],
    words: Sequence[str],
) -> dict[str, int]:
    """A byte-level tokenizer that has whole pieces of the script as tokens; every token's id, by what it spells.

    It makes single bytes of all text but `words`, because nothing merges into those pieces.
    """
    special = [BOS, START, END, *script, *markers]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str
    pieces = dict.fromkeys(piece for tokens in script.values() for piece in tokens if piece not in special)
    spelled = {piece: spell(piece)[0][0] for piece in pieces}
    learned, merges = _merges(words, alphabet)
    vocabulary = dict.fromkeys([*special, *alphabet, *spelled.values(), *learned])
    ids = {token: number for number, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges))
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in tags])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    save_tokenizer(directory, tokenizer, template)
    # Where a grammar bars what it would say, greedy sampling would repeat token 0 until max_tokens.
    (directory / "generation_config.json").unlink()
    return ids | {piece: ids[token] for piece, token in spelled.items()}


def _merges(words: Sequence[str], alphabet: list[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Tokens of several bytes that are frequent in a text, and the pairs that merge into them."""
    if not words:
        return [], []
    learned = Tokenizer(models.BPE())
    learned.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=len(alphabet) + 1024, initial_alphabet=alphabet, special_tokens=[], show_progress=False
    )
    learned.train_from_iterator(words, trainer)
    merges = [tuple(pair) for pair in json.loads(learned.to_str())["model"]["merges"]]
    return ["".join(pair) for pair in merges], merges
