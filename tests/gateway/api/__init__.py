"""The dialects, without I/O."""
