"""Bookkeeping of the memory for KV: blocks, idle agents, and admission. Event loop; no arrays."""
