"""Models: which there are, how one is loaded, and which serve."""
