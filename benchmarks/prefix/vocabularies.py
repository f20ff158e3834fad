"""Real tokenizers, with templates, and what a model generates over them: tokens that need not be the canonical ones."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import Any, NamedTuple

from mlx_lm.utils import load_tokenizer
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from benchmarks.models import DEMO
from benchmarks.prefix.passages import corpus
from inference_service.text.rendering import Renderer
from inference_service.text.tokenizer import Tokenizer

START, END = "<|im_start|>", "<|im_end|>"
SIZE = 8192

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
STRIPS_REASONING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and not loop.last and '</think>' in m.content %}"
    "{{ m.content.split('</think>')[-1].lstrip('\n') }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""As Qwen 3's: the reasoning of an answer is gone once another message follows."""
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
"""How Llama 3 and GPT-4 split text before they merge."""


class Answer(NamedTuple):
    """What was generated: its tokens, the end of turn included where it came to it, and the text that a client gets."""

    token_ids: tuple[int, ...]
    text: str


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer, and renderers with a plain template and with one that strips reasoning from history."""

    name: str
    tokenizer: Tokenizer
    plain: Renderer
    reasoning: Renderer

    def answer(self, text: str, random: Random, rate: float, limit: int | None = None) -> Answer:
        """Generate `text`, each token written as two with probability `rate`; cut off after `limit` tokens."""
        pieces = _by_piece(self.tokenizer)
        token_ids: list[int] = []
        for token_id in self.tokenizer.encode(text, parse_special=False):
            piece = self.tokenizer.token_bytes(token_id)
            cuts = [at for at in range(1, len(piece)) if piece[:at] in pieces and piece[at:] in pieces]
            # Drawn whatever the rate is, so that conversations differ in nothing else.
            drawn, where = random.random(), random.random()
            if cuts and drawn < rate:
                at = cuts[int(where * len(cuts))]
                token_ids += [pieces[piece[:at]], pieces[piece[at:]]]
            else:
                token_ids.append(token_id)
        ended = limit is None or len(token_ids) < limit
        said = token_ids if ended else token_ids[:limit]
        shown = self.tokenizer.decode(said).decode(errors="replace")
        return Answer((*said, *((self.tokenizer.special_id(END),) if ended else ())), shown)


@cache
def _by_piece(tokenizer: Tokenizer) -> dict[bytes, int]:
    """Ordinary tokens by what they stand for."""
    ids = (i for i in range(tokenizer.vocab_size) if i not in tokenizer.special_ids)
    return {piece: i for i in ids if (piece := tokenizer.token_bytes(i))}


def demo() -> Vocabulary:
    """The demo model's, with its own template: byte-level BPE of 3072 tokens, which splits as GPT-2 does."""
    wrapper: Any = load_tokenizer(DEMO)
    made = _vocabulary("demo", wrapper._tokenizer.backend_tokenizer, wrapper.eos_token_ids)
    return replace(made, plain=Renderer(made.tokenizer, wrapper.apply_chat_template, checkpoints=False))


def trained(texts: Sequence[str] | None = None, size: int = SIZE) -> Vocabulary:
    """A byte-level BPE that splits as Llama 3 does, trained on the passages in a few seconds, always the same."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(corpus() if texts is None else texts, trainer)
    return _vocabulary(f"bpe-{size}", backend, backend.encode(END).ids)


def _vocabulary(name: str, backend: Backend, eos_ids: Sequence[int]) -> Vocabulary:
    tokenizer = Tokenizer(backend, eos_ids)

    def renderer(template: str) -> Renderer:
        whole = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END, chat_template=template)
        return Renderer(tokenizer, whole.apply_chat_template, checkpoints=False)

    return Vocabulary(name, tokenizer, renderer(CHATML), renderer(STRIPS_REASONING))
