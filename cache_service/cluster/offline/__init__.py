"""`agentmem cluster import`, `export` and `check`; `importing` and `exporting` move `rows` between engines."""
