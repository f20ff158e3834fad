"""The prefix benchmark."""
