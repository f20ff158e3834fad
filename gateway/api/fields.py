"""Fields that would change the answer, and that no schema of their place has: they are refused with advice.

Names that are neither here nor in a schema have no effect; the answer names those of a body in `agentmem.left_out`.
"""

from collections.abc import Mapping
from typing import Final

from agentmem.limits import SAMPLING

_HOSTED = "nothing outside this server is asked; give the model a tool of your own"
_FORMAT = 'say it in response_format ({"type": "json_schema", …})'
_SAMPLER = "no such sampler is built in"
_CHAT = "only /v1/chat/completions and /v1/completions have it"
_TOOLS = "completions call no tools; use /v1/chat/completions"

REFUSED: Final[Mapping[str, str]] = {
    "audio": "answers are text",
    "auto_tool_choice": "say it in tool_choice",
    "best_of": "every choice is returned; send n",
    "chat_template": "the model's own template is used; chat_template_kwargs are its arguments",
    "compaction": "what happens where the context is full is the agent's context policy",
    "container": _HOSTED,
    "context_management": "what happens where the context is full is the agent's context policy",
    "continue_final_message": "an answer cannot be begun for the model",
    "conversation": "use previous_response_id, or send the whole conversation as input",
    "echo": "only /v1/completions has it",
    "fallbacks": "one model answers",
    "format": _FORMAT,
    "function_call": "say it in tool_choice",
    "functions": "name them in tools",
    "grammar": _FORMAT,
    "guided_choice": _FORMAT,
    "guided_grammar": _FORMAT,
    "guided_json": _FORMAT,
    "guided_regex": _FORMAT,
    "ignore_eos": "only POST /v1/agents/{agent}/generate has it",
    "image": "answers are text",
    "input": "send messages",
    "instructions": 'send it as a message of role "system"',
    "max_completion_tokens": "the name is max_tokens, or max_output_tokens",
    "max_output_tokens": "the name is max_tokens",
    "max_tokens": "the name is max_output_tokens",
    "mcp_servers": _HOSTED,
    "messages": "use /v1/chat/completions, or send input",
    "min_tokens": _SAMPLER,
    "mirostat": _SAMPLER,
    "models": "one model answers",
    "n": _CHAT,
    "n_predict": "the name is max_tokens",
    "num_ctx": "a model's context is set where it is loaded",
    "num_predict": "the name is max_tokens",
    "options": "say each by its own name, beside the messages",
    "output_config": "say it for the whole request",
    "parallel_tool_calls": "say it in tool_choice.disable_parallel_tool_use",
    "plugins": _HOSTED,
    "prefill": "an answer cannot be begun for the model",
    "prefix": "an answer cannot be begun for the model",
    "previous_response_id": "only /v1/responses has it",
    "prompt": "a stored prompt belongs to another server; send it as input or instructions",
    "reasoning_effort": "say it in output_config.effort",
    "repeat_penalty": "the name is repetition_penalty",
    "response_format": "say it in output_config.format, or in text.format",
    "stop": "the name is stop_sequences in /v1/messages; /v1/responses has none",
    "stop_sequences": "the name is stop",
    "stop_token_ids": "send stop, which are texts",
    "suffix": "models here write what follows, not what stands between",
    "system": 'send it as a message of role "system", or as instructions',
    "think": "the name is reasoning_effort, or enable_thinking",
    "thread": "X-Agent-ID names a conversation",
    "tool_choice": _TOOLS,
    "tools": _TOOLS,
    "typical_p": _SAMPLER,
    "use_beam_search": _SAMPLER,
    "web_search_options": _HOSTED,
    **dict.fromkeys(SAMPLING.keys() - {"temperature", "top_p"}, _CHAT),
}
"""Advice by name. Where a schema has the field, the schema counts; a parameter of Sampling is no unknown sampler."""
