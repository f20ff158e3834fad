"""The world that the bundled demo model knows, and its committed figures."""
