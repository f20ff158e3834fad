"""The memory benchmark."""
