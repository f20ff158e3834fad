"""Authentication, keys, TLS, admission."""
