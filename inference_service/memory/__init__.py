"""An agent's memory, as pure values: ledger, match, and the plan of what to reuse. No I/O, no MLX."""
