"""Anthropic's dialect, without I/O."""
