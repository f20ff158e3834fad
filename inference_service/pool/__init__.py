"""Bookkeeping of memory for KV. Event loop; no arrays."""
