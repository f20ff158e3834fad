"""The rows of store.db: agents and their ledgers.

`ledgers` is a database's interface, `database` SQLite's; `schema` its tables; `clock` the time of idle agents;
`writability` whether the disk takes a turn. All others are functions of a connection, inside the caller's transaction:
`segments` is the tree of ledgers, `agents` and `snapshots` its heads, `turns` commits, `branches` forks, cuts and
returns, `kv_changes` what warm.db must follow, and `object_references` the object store's part of states.
"""
