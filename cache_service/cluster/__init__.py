"""This store as a node of several that share one ledger, which `ledger` attaches instead of store.db.

`membership` sends heartbeats by the statements of `nodes`; `servicer` answers this node's gateway.
"""
