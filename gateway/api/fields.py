"""Fields of requests that no schema has: those that change nothing, and those that are refused with advice.

Both lists are of all dialects.
What is neither is refused by name. docs/reference/fields.md shows both lists beside the fields that count.
"""

from collections.abc import Mapping
from typing import Final

_KEPT = "everything is kept anyhow"
_ACCOUNTS = "there are no accounts and no prices"
_OTHERS = "another server's answer had it, and it comes back"
_TOKENS = "no token depends on it"

IDLE: Final[Mapping[str, str]] = {
    "add_generation_prompt": "the model always answers",
    "annotations": _OTHERS,
    "billing_policy": _ACCOUNTS,
    "betas": "nothing is behind a header or a list",
    "cache_control": _KEPT,
    "cache_prompt": _KEPT,
    "caller": "the model itself calls tools",
    "citations": _OTHERS,
    "client_metadata": _ACCOUNTS,
    "continuous_usage_stats": "the usage comes at the end",
    "diagnostics": "each answer says why its memory did not match",
    "eager_input_streaming": "arguments are streamed where the model's format allows it",
    "encrypted_content": "only who wrote it can read it",
    "extra_content": _OTHERS,
    "fallback_credit_token": _ACCOUNTS,
    "id": "nothing is found by it",
    "id_slot": "an agent is no slot",
    "include_obfuscation": _TOKENS,
    "include_reasoning": "reasoning is a field of its own",
    "index": _OTHERS,
    "input_examples": "templates know nothing of them",
    "inference_geo": _ACCOUNTS,
    "internal_chat_message_metadata_passthrough": _ACCOUNTS,
    "keep_alive": "how long a model stays is set where it is loaded",
    "logprobs": _OTHERS,
    "max_tool_calls": "only tools that run on the server are counted",
    "metadata": _ACCOUNTS,
    "moderation": _OTHERS,
    "output_schema": "templates know nothing of it",
    "parsed": _OTHERS,
    "parsed_arguments": _OTHERS,
    "phase": _OTHERS,
    "prediction": "speculation finds its own",
    "priority": "turns have hints for that",
    "prompt_cache_breakpoint": _KEPT,
    "prompt_cache_options": _KEPT,
    "prompt_cache_retention": _KEPT,
    "provider": "there is one",
    "provider_specific_fields": _OTHERS,
    "reasoning_details": _OTHERS,
    "request_id": "Idempotency-Key names a turn",
    "safeguards": "there is no filter",
    "safety_identifier": _ACCOUNTS,
    "service_tier": _ACCOUNTS,
    "session_id": "X-Agent-ID names an agent",
    "signature": "thoughts are not encrypted",
    "speed": "there is one",
    "status": _OTHERS,
    "store": _KEPT,
    "task_budget": "nothing holds a model to it",
    "thinking_blocks": "reasoning_content has the same",
    "thought_signature": _OTHERS,
    "toolset_name": _OTHERS,
    "transforms": "a prompt is never cut",
    "truncation": "what happens where the context is full is the agent's context policy",
    "ttl": "how long a model stays is set where it is loaded",
    "usage": "the usage is always told",
    "user": _ACCOUNTS,
    "user_profile_id": _ACCOUNTS,
    "workspace_id": _ACCOUNTS,
    "verbosity": "templates know nothing of it; say it in the instructions",
}
"""By name: why they change nothing. They may stand anywhere, and hold anything."""

_HOSTED = "nothing outside this server is asked; give the model a tool of your own"
_FORMAT = 'say it in response_format ({"type": "json_schema", …})'
_SAMPLER = "no such sampler is built in"

REFUSED: Final[Mapping[str, str]] = {
    "audio": "answers are text",
    "auto_tool_choice": "say it in tool_choice",
    "chat_template": "the model's own template is used; chat_template_kwargs are its arguments",
    "container": _HOSTED,
    "continue_final_message": "an answer cannot be begun for the model",
    "conversation": "use previous_response_id, or send the whole conversation as input",
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
    "mcp_servers": _HOSTED,
    "min_tokens": _SAMPLER,
    "mirostat": _SAMPLER,
    "models": "one model answers",
    "n_predict": "the name is max_tokens",
    "num_ctx": "a model's context is set where it is loaded",
    "num_predict": "the name is max_tokens",
    "options": "say each by its own name, beside the messages",
    "plugins": _HOSTED,
    "prefill": "an answer cannot be begun for the model",
    "prefix": "an answer cannot be begun for the model",
    "prompt": "a stored prompt belongs to another server; send it as input or instructions",
    "repeat_penalty": "the name is repetition_penalty",
    "stop_token_ids": "send stop, which are texts",
    "suffix": "models here write what follows, not what stands between",
    "think": "the name is reasoning_effort, or enable_thinking",
    "typical_p": _SAMPLER,
    "use_beam_search": _SAMPLER,
    "web_search_options": _HOSTED,
}
"""By name: what to do instead. Where a schema has the field, the schema counts."""
