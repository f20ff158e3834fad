"""`agentmem cluster import`, `export` and `check`: a directory's ledgers into PostgreSQL and back, and faults there.

`importing` and `exporting` move rows by `rows`, which knows both engines; `checking` is `offline.ledgers` on a server.
`forgetting` and `keys` change rows that are no ledger's: of nodes, and of callers' keys.
"""
