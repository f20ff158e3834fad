"""The cache store: ledgers in SQLite or PostgreSQL, KV in files that never change, one data directory. Where to read:

__main__.py    the process, with its `settings` and the `metrics` that it exports
process.py     what the process does, from its settings to its orderly end
store.py       opens and closes all of it in order, on a ledger_home.py: the ledgers of this machine (own_ledger.py), or
               those that the nodes of a cluster share (cluster/ledger.py)
connection.py  a connection to either database, as the functions of ledger/ and files/ take it
rpc/           the RPCs; from here on values are passed, not messages
tiers/         which files of KV stay on the disk, which are in the object store, and how they get there
ledger/        the database: agents, and the ledgers that are their memories
files/         files of KV and their rows
damage.py      the error for rows that are not what was written
offline/       what an operator does to a directory that no store serves
doctor.py      the store's checks for `agentmem doctor`

Imports go one way: rpc, tiers, ledger, files.

cluster/ is a ring around this core, which does not import it and is whole without it: this store as a node, with
PostgreSQL's ledger, heartbeat, lease, the list of nodes, files of other nodes. process.py finds it where settings name
a cluster.
"""
