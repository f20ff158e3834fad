"""Ledger and lookups of the store by gRPC, KV by files."""
