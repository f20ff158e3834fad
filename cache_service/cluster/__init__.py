"""This store as a node of several that share one ledger: who is there, what time it is, and what all have to follow.

`membership` keeps this node among the others; `nodes` are its statements. What the store opens in the place of store.db
is `cache_service.shared_ledger`.
"""
