"""Chat templates with the traits of models that no package at hand ships, and tokenizers with their special tokens."""

from dataclasses import dataclass
from functools import cache
from typing import Any

from transformers import PreTrainedTokenizerFast

from inference_service.text.rendering import Renderer
from inference_service.text.tokenizer import Tokenizer
from tests.inference_service.real_tokenizers import byte_level_backend


@dataclass(frozen=True)
class Family:
    """A template and the special tokens that it spells; `stops` end generation, the first of them as the EOS."""

    name: str
    template: str
    specials: tuple[str, ...]
    stops: tuple[str, ...]
    bos: str | None = None

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Model:
    family: Family
    tokenizer: Tokenizer
    renderer: Renderer
    transformers: Any

    def whole(self, messages: list[dict[str, Any]], *, generation_prompt: bool = True, **arguments: Any) -> str:
        return str(
            self.transformers.apply_chat_template(
                messages, add_generation_prompt=generation_prompt, tokenize=False, **arguments
            )
        )


@cache
def model(family: Family) -> Model:
    """A small byte-level tokenizer with the family's special tokens, and its template."""
    backend = byte_level_backend()
    backend.add_special_tokens(list(family.specials))
    whole = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=family.bos,
        eos_token=family.stops[0],
        chat_template=family.template,
    )
    tokenizer = Tokenizer(backend, [backend.token_to_id(stop) for stop in family.stops])
    return Model(family, tokenizer, Renderer(tokenizer, whole.apply_chat_template), whole)


GLM = Family(
    "GLM",
    "[gMASK]<sop>{% for m in messages %}"
    "{% if m.role == 'user' %}<|user|>\n{{ m.content }}"
    "{% elif m.role == 'assistant' %}<|assistant|>\n<think></think>\n{{ m.content.strip() }}"
    "{% for c in m.tool_calls or [] %}{{ '\n<tool_call>' + c.function.name + '\n' }}"
    "{{ c.function.arguments | tojson }}</tool_call>{% endfor %}"
    "{% elif m.role == 'tool' %}{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|observation|>"
    "{% endif %}{{ '\n<tool_response>\n' + m.content }}\n</tool_response>"
    "{% elif m.role == 'system' %}<|system|>\n{{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n<think></think>\n{% endif %}",
    ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|endoftext|>"),
    ("<|endoftext|>", "<|user|>", "<|observation|>"),
)
"""A turn ends where the next begins, so generation stops at the token that opens what follows."""

APERTUS = Family(
    "Apertus",
    "{% set ns = namespace(open=false) %}<s>{% for m in messages %}"
    "{% if m.role == 'assistant' %}{% if not ns.open %}<|assistant_start|>{% set ns.open = true %}{% endif %}"
    "{{ m.content }}{% for c in m.tool_calls or [] %}<|tools_prefix|>[{{ c.function | tojson }}]<|tools_suffix|>"
    "{% endfor %}"
    "{% elif m.role == 'tool' %}[{{ m.content }}]"
    "{% else %}{% if ns.open %}<|assistant_end|>{% set ns.open = false %}{% endif %}"
    "<|{{ m.role }}_start|>{{ m.content }}<|{{ m.role }}_end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt and not ns.open %}<|assistant_start|>{% endif %}",
    (
        *("<s>", "</s>", "<|assistant_start|>", "<|assistant_end|>", "<|user_start|>", "<|user_end|>"),
        *("<|system_start|>", "<|system_end|>", "<|tools_prefix|>", "<|tools_suffix|>"),
    ),
    ("</s>", "<|assistant_end|>", "<|tools_suffix|>"),
)
"""An answer's turn ends only when another role speaks."""

GPT_OSS = Family(
    "GPT-OSS",
    "<|start|>system<|message|>You are a model.\nCurrent date: {{ strftime_now('%Y-%m-%d') }}<|end|>"
    "{% set ns = namespace(call=none) %}{% for m in messages %}"
    "{% if m.role == 'system' %}<|start|>developer<|message|># Instructions\n\n{{ m.content }}<|end|>"
    "{% elif m.role == 'assistant' and m.tool_calls %}{% set ns.call = m.tool_calls[0].function.name %}"
    "{% if m.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}"
    "<|start|>assistant to=functions.{{ ns.call }}<|channel|>commentary json<|message|>"
    "{{ m.tool_calls[0].function.arguments | tojson }}<|call|>"
    "{% elif m.role == 'assistant' %}{% set ns.call = none %}"
    "{% if loop.last and not add_generation_prompt %}"
    "{% if m.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}"
    "<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|return|>"
    "{% else %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>{% endif %}"
    "{% elif m.role == 'tool' %}"
    "{% if ns.call is none %}{{ raise_exception('Message has tool role, but there was no previous assistant message "
    "with a tool call!') }}{% endif %}"
    "<|start|>functions.{{ ns.call }} to=assistant<|channel|>commentary<|message|>{{ m.content | tojson }}<|end|>"
    "{% else %}<|start|>user<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}",
    ("<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|return|>", "<|call|>", "<|endoftext|>"),
    ("<|return|>", "<|call|>", "<|endoftext|>"),
)
"""Generation ends with a token that history has another one for, answers have channels, and the date is in front."""

PHI = Family(
    "Phi-3.5",
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% else %}{{ eos_token }}{% endif %}",
    ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|endoftext|>"),
    ("<|endoftext|>", "<|end|>"),
)
"""Whatever is rendered without a generation prompt ends with an EOS."""

COMMAND = Family(
    "Command R7B",
    "<BOS_TOKEN>{% for m in messages %}"
    "{% if m.role == 'system' %}<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>{{ m.content }}<|END_OF_TURN_TOKEN|>"
    "{% elif m.role == 'user' %}<|START_OF_TURN_TOKEN|><|USER_TOKEN|>{{ m.content }}<|END_OF_TURN_TOKEN|>"
    "{% elif m.role == 'assistant' and m.tool_calls %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><|START_ACTION|>["
    "{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}]<|END_ACTION|><|END_OF_TURN_TOKEN|>"
    "{% elif m.role == 'assistant' %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><|START_RESPONSE|>{{ m.content }}"
    "<|END_RESPONSE|><|END_OF_TURN_TOKEN|>"
    "{% else %}<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|><|START_TOOL_RESULT|>{{ m.content | tojson }}"
    "<|END_TOOL_RESULT|><|END_OF_TURN_TOKEN|>{% endif %}{% endfor %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
    (
        *("<BOS_TOKEN>", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|SYSTEM_TOKEN|>", "<|USER_TOKEN|>"),
        *("<|CHATBOT_TOKEN|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_ACTION|>", "<|END_ACTION|>"),
        *("<|START_TOOL_RESULT|>", "<|END_TOOL_RESULT|>"),
    ),
    ("<|END_OF_TURN_TOKEN|>",),
)
"""The generation prompt is always there, and two tokens end an answer."""

MISTRAL = Family(
    "Mistral",
    "<s>{% for m in messages %}"
    "{% if m.role == 'system' %}[SYSTEM_PROMPT]{{ m.content }}[/SYSTEM_PROMPT]"
    "{% elif m.role == 'user' %}{% if not loop.first and messages[loop.index0 - 1].role == 'user' %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}[INST]{{ m.content }}[/INST]"
    "{% elif m.role == 'assistant' and m.tool_calls %}[TOOL_CALLS][{% for c in m.tool_calls %}"
    "{% if c.id | length != 9 %}{{ raise_exception('Tool call IDs should have 9 characters') }}{% endif %}"
    "{{ c.function | tojson }}{% endfor %}]</s>"
    "{% elif m.role == 'assistant' %}{{ m.content }}</s>"
    "{% else %}{% if m.tool_call_id | length != 9 %}{{ raise_exception('Tool call IDs should have 9 characters') }}"
    "{% endif %}[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]{% endif %}{% endfor %}",
    (
        *("<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CALLS]"),
        *("[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
    ),
    ("</s>",),
)
"""There is no generation prompt, and each role's turn ends in another way."""

LLAMA = Family(
    "Llama 3",
    "<|begin_of_text|>{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{% if m.tool_calls %}{{ m.tool_calls[0].function | tojson }}{% else %}{{ m.content | trim }}{% endif %}<|eot_id|>"
    "{% endfor %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}",
    ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),
    ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),
)
"""The generation prompt is always there, contents are trimmed, and generation may end with what no template has."""

FAMILIES = (GLM, APERTUS, GPT_OSS, PHI, COMMAND, MISTRAL, LLAMA)
