"""The memory for KV: the bookkeeping of blocks, idle agents, and admission. Event loop; no arrays."""
