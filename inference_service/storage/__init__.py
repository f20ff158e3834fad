"""The worker's way to the cache store: ledger and lookups by gRPC, KV by files."""
