"""OpenAI's dialect, without I/O."""
