"""The cache store: ledgers in SQLite, KV in immutable files, one data directory, one process. Where to read:

__main__.py    the process, with its `settings` and the `metrics` that it exports
store.py       opens and closes all of it in order
rpc/           the RPCs; from here on values are passed, not messages
tiers/         which files of KV stay on the disk, which are in the object store, and how they get there
ledger/        the database: agents, and the ledgers that are their memories
files/         files of KV and their rows
checksums.py   finds rows that are not what was written
offline/       what an operator does to a directory that no store serves
doctor.py      the store's checks for `agentmem doctor`

Imports go one way: rpc, tiers, ledger, files.
"""
