"""An agent's memory as pure values. No I/O, no MLX."""
