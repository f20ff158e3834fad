"""Text and tokens: the tokenizer, rendering of inputs, streaming of outputs. No MLX."""
