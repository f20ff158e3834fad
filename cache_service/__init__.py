"""The cache store: ledgers in SQLite, KV in immutable files, one data directory, one process.

From the rim inwards: `__main__` starts the process; `servicer` and `servicer_agents` take the RPCs and `conversions`
turns messages into frozen dataclasses and back; `turns`, `ledger`, `agents`, `references` and `workflows` are the
transactions, each a function of one SQLite connection; `blocks` moves files and rows together; `database` is the thread
that owns SQLite; `files` is the data directory.
"""
