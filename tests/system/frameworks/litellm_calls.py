"""LiteLLM: what the guide's sample leaves out."""

import json
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from expecting import KEY, TOO_LONG, URL, V1, other_beginning, raised

litellm.suppress_debug_info = True
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "How the weather is.",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
SCHEMA = {
    "type": "json_schema",
    "json_schema": {
        "name": "alarm",
        "schema": {
            "type": "object",
            "properties": {"at": {"enum": [7, 8]}},
            "required": ["at"],
            "additionalProperties": False,
        },
    },
}
WAYS = {"openai": V1, "anthropic": URL}


def ask(way: str, model: str, messages, **more):
    asked = {"api_base": WAYS[way], "api_key": KEY, "num_retries": 0, "max_tokens": 1000, **more}
    return litellm.completion(model=f"{way}/{model}", messages=messages, **asked)


def converse(way: str) -> None:
    said = [
        {"role": "system", "content": other_beginning()},
        {"role": "user", "content": "The key is in the cellar."},
    ]
    first = ask(way, "demo", said, temperature=0)
    said += [first.choices[0].message, {"role": "user", "content": "Where is the key?"}]
    chunks = list(ask(way, "demo", said, temperature=0, stream=True, stream_options={"include_usage": True}))
    whole = litellm.stream_chunk_builder(chunks)
    assert "cellar" in whole.choices[0].message.content
    assert whole.usage.prompt_tokens_details.cached_tokens > 0, whole.usage


def with_tools(way: str) -> None:
    said = [{"role": "user", "content": "hi"}]
    for more in ({}, {"stream": True}, {"tool_choice": "auto", "parallel_tool_calls": False}):
        answer = ask(way, "qwen", said, tools=[TOOL], **more)
        answer = litellm.stream_chunk_builder(list(answer)) if "stream" in more else answer
        message = answer.choices[0].message
        (call,) = message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
        told = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
        after = ask(way, "qwen", [*said, message, told], tools=[TOOL])
        assert after.choices[0].message.content == "It rains in Paris!"
        assert after.usage.prompt_tokens_details.cached_tokens > 0
    told = ask(way, "qwen", said, response_format=SCHEMA)
    assert json.loads(told.choices[0].message.content)["at"] in (7, 8)


def refused(way: str) -> None:
    hi, long = ([{"role": "user", "content": text}] for text in ("hi", TOO_LONG))
    assert isinstance(raised(lambda: ask(way, "demo", hi, api_key="wrong")), litellm.AuthenticationError)
    error = raised(lambda: ask(way, "gpt-9", hi))
    assert isinstance(error, litellm.NotFoundError) and "demo" in str(error)
    for more in ({}, {"stream": True}):
        error = raised(lambda more=more: ask(way, "demo", long, **more))
        assert isinstance(error, litellm.ContextWindowExceededError), repr(error)


for way in WAYS:
    converse(way)
    with_tools(way)
    refused(way)
answer = litellm.responses(model="openai/demo", input="The key is in the cellar.", api_base=V1, api_key=KEY)
asked = {"model": "openai/demo", "input": "Where is the key?", "previous_response_id": answer.id}
after = litellm.responses(**asked, api_base=V1, api_key=KEY, temperature=0)
assert "cellar" in after.output[0].content[0].text
assert after.usage.input_tokens_details.cached_tokens > 0
