"""This store as a node of several that share one ledger: the list of nodes, the clock that they share, callers' keys.

`membership` sends heartbeats; `nodes` has its statements. What the store opens instead of store.db is
`cache_service.shared_ledger`.
"""
