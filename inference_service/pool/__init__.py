"""The memory for KV: blocks and who uses them, idle agents, and who may begin. Event loop; no arrays."""
