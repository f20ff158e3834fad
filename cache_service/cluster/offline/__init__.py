"""`agentmem cluster import`, `export` and `check`: a directory's ledgers into PostgreSQL and back, and faults there.

`importing` and `exporting` move rows by `rows`, which knows both engines, and look at a `store_file`; `checking` is
`offline.ledgers` on a server. `keys` changes the rows of callers' keys; a node is forgotten by its command in
`commands`.
"""
