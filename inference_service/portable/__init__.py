"""An agent as one file, for another worker with the same model."""
