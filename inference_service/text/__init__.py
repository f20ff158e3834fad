"""Text and tokens. No MLX, and no I/O.

vocabulary.py, tokenizer.py                  tokens
template.py, message_forms.py                the chat template
prompt.py, rendering.py, continuation.py     inputs as text
streaming.py, answering.py, reasoning.py, tool_calls.py, call_parts.py   answers
json_schema.py, lark.py, grammar.py          constrained generation
"""
