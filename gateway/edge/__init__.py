"""Keys, TLS, limits."""
