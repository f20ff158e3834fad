"""The rows of store.db: agents and their ledgers.

`ledgers` is a database's interface, `database` SQLite's (`cache_service.cluster.postgres` is another); `schema` is the
tables, `clock` the time of idle agents, `writability` whether the disk takes a turn, `versions` new versions. All other
modules are functions of a connection, inside the caller's transaction: `segments` is the tree of ledgers, `agents`
their heads, `turns` commits and replays, `branches` forks, cuts and returns, `snapshots` named states, `history` and
`finding` reads, `workflow_records` runs, `kv_changes` what warm.db must follow, and `object_references` the objects of
states.
"""
