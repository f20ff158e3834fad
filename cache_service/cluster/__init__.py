"""This store as a node of several that share one ledger.

`ledger` is opened instead of store.db, and is in `postgres`; `membership` sends heartbeats, and `nodes` has its
statements; `clock` is shared by all nodes, `keys` are callers'; `servicer` is ClusterService; `peers` reads files from
other nodes; `offline` has the commands; `settings` say which cluster it is; the store's process calls `attach`.
"""
