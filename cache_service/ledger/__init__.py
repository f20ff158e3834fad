"""The rows of store.db: agents, and the ledgers that are their memories.

`database` owns SQLite; `schema` is its tables, `clock` the time that idle agents go by, and
`writability` whether the disk takes a turn. All other modules are functions of a
connection, which run inside the caller's transaction: `segments` is the tree that ledgers are, `agents` their heads,
`turns` commits and what they replay, `branches` forks, cuts and returns, `snapshots` states with a name, `history` and
`finding` what readers ask for, `workflow_records` the runs of workflows.
`kv_changes` says to warm.db what becomes of states' files, and `object_references` which objects states consist of.

`cache_service.cluster.postgres` is another engine for the same functions.
"""
