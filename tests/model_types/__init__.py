"""The census: a small random model of each of mlx-lm's model types, and whether the engine runs it right."""
