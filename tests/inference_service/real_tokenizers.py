"""Small tokenizers of the kinds that models bring, and real chat templates."""

import json
from functools import cache
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from inference_service.text.rendering import Renderer
from inference_service.text.tokenizer import Tokenizer

BOS, START, END = "<|bos|>", "<|im_start|>", "<|im_end|>"
SPECIALS = (BOS, START, END)

CORPUS = [
    "The colour of the boat is green, and the house by the sea is red. Who told you that? Nobody knows; it's 1234567.",
    "Die Grüße der Straße, naïve café über alles. 東京は日本の首都です。 Привет! We'll see: they're 42, I'd go.\n",
    "def f(x):\n    return x + 1  # a comment\n\n\nprint(f(41))\t\tend",
] * 20

CHATML = (
    "{{ bos_token }}{% if tools %}TOOLS {{ tools | tojson }}{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}"
    "{% if m.name %} name={{ m.name }}{% endif %}{{ '\\n' + m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call | tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
STRIPS_THINKING = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and not loop.last and '</think>' in m.content %}{{ m.content.split('</think>')[-1] }}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Drops the reasoning of an assistant message once another message follows."""

QWEN3_LIKE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Puts an empty reasoning block before the last assistant message only."""

STRICT_ROLES = (
    "{% for m in messages %}{% if m.role not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('unknown role ' + m.role) }}{% endif %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ALTERNATING = (
    "{{ bos_token }}{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %} {{ m.content }}<|im_end|>{% endif %}{% endfor %}"
)
"""As Mistral's and Llama 2's."""

LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


def byte_level_backend(split: str | None = None, *, bos: bool = False) -> Backend:
    """Byte-level BPE: GPT-2's pre-tokenizer, or one that splits by a regex as Llama 3's does."""
    backend = Backend(models.BPE())
    if split is None:
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(split), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    if bos:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{BOS} $A", special_tokens=[(BOS, backend.token_to_id(BOS))]
        )
    return backend


def nfc_backend() -> Backend:
    """Byte-level BPE with an NFC normalizer, as Qwen has it."""
    backend = byte_level_backend(LLAMA3_SPLIT)
    backend.normalizer = normalizers.NFC()
    return backend


def sentence_piece_backend() -> Backend:
    """As Llama 2's tokenizer.json: a space before the text, spaces as U+2581, bytes for unknown characters."""
    trained = Backend(models.BPE())
    trained.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=tokens, show_progress=False)
    trained.train_from_iterator((line[:60] for line in CORPUS), trainer)
    model = models.BPE(
        vocab=trained.get_vocab(with_added_tokens=True),
        merges=_merges(trained),
        unk_token="<unk>",
        fuse_unk=True,
        byte_fallback=True,
    )
    backend = Backend(model)
    backend.normalizer = trained.normalizer
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<unk>", "<s>", "</s>")])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return backend


def _merges(backend: Backend) -> list[tuple[str, str]]:
    return [tuple(merge) for merge in json.loads(backend.to_str())["model"]["merges"]]


@cache
def byte_level() -> Tokenizer:
    """GPT-2's kind, without a BOS of its own."""
    backend = byte_level_backend()
    return Tokenizer(backend, [backend.token_to_id(END)])


@cache
def byte_level_with_bos() -> Tokenizer:
    """GPT-2's kind, with a post-processor that puts a BOS in front."""
    backend = byte_level_backend(bos=True)
    return Tokenizer(backend, [backend.token_to_id(END)])


@cache
def llama3_like() -> Tokenizer:
    """Llama 3's kind: digits in groups of three, and a BOS."""
    backend = byte_level_backend(LLAMA3_SPLIT, bos=True)
    return Tokenizer(backend, [backend.token_to_id(END)])


@cache
def nfc() -> Tokenizer:
    """Qwen's kind."""
    backend = nfc_backend()
    return Tokenizer(backend, [backend.token_to_id(END)])


@cache
def sentence_piece() -> Tokenizer:
    """Llama 2's kind."""
    return Tokenizer(sentence_piece_backend(), [2])


@cache
def hugging_face(template: str) -> Any:
    """The byte-level tokenizer as transformers has it, with a chat template."""
    return PreTrainedTokenizerFast(
        tokenizer_object=byte_level_backend(bos=True), bos_token=BOS, eos_token=END, chat_template=template
    )


@cache
def renderer(template: str | None = CHATML) -> Renderer:
    """A renderer over the byte-level tokenizer with a BOS."""
    return Renderer(byte_level_with_bos(), None if template is None else hugging_face(template).apply_chat_template)
