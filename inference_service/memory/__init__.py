"""An agent's memory, as pure values: match, what to reuse and from where, checkpoints, trimming. No I/O, no MLX."""
