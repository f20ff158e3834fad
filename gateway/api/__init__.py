"""The dialects as pure translation, without I/O: JSON in, messages of the contract out, and their events back as JSON.

chat, completions, responses (OpenAI), messages (Anthropic), rest (the contract's own, by its descriptors).
"""
