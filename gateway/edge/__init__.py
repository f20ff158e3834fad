"""The edge: callers, keys, TLS, limits."""
