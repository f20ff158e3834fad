"""Which files of KV stay on the disk, and for how long.

`blocks` publishes, adopts, quarantines and deletes files, whose rows `warm_rows` has follow the ledger, within the
limits that `warm` keeps: `limits` are those of
the disk, `quotas` those of namespaces, to which ledgers are held, too; `eviction` is whose KV goes. `streams` moves
files for workers that do not share the disk. `remote` is the object store, `objects` its rows, `replication` keeps it
as they say, `retrieval` brings files back.
"""
