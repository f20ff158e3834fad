"""The cache store: ledgers in SQLite, KV in immutable files, one data directory, one process.

From the rim inwards: `__main__` starts the process; `servicer` and `servicer_agents` take the RPCs and `conversions`
turns messages into frozen dataclasses and back; `turns`, `ledger`, `agents`, `references`, `quarantine` and `workflows`
are the transactions, each a function of one SQLite connection; `blocks` moves files and rows together; `publication` is
what a worker hands in, and its verification; `database` is the thread that owns SQLite; `files` is the data directory;
`store` opens and closes it all in order.
"""
