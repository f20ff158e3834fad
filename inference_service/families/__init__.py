"""Quirks of model families, as tables: `chats` for text, `networks` for mlx-lm's modules. Pure data."""
