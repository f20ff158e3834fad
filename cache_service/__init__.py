"""The cache store: ledgers in SQLite or PostgreSQL, KV in files that never change, one data directory.

    process.py     the process, from its `settings` to its orderly end; `metrics`
    store.py       opens and closes all of it, on a ledger_home.py: this machine's (own_ledger.py) or a cluster's
    connection.py  a connection to either database, and `damage` in it
    rpc/           the RPCs; below them values are passed, not messages
    tiers/         files of KV on the disk and in the object store
    ledger/        the database: agents, and the ledgers that are their memories
    files/         files of KV and their rows
    offline/       work on a directory that no store serves
    doctor.py      checks for `agentmem doctor`
    cluster/       a ring around this core, which does not import it

Imports go one way: rpc, tiers, ledger, files.
"""
