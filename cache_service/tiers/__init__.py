"""Which files of KV stay on the disk, and for how long.

`blocks` publishes, adopts and deletes files; `warm_rows` changes their rows after the ledger. `warm` keeps the disk
within `limits` and `quotas`; `eviction` chooses whose KV goes. `streams` moves files between nodes. `remote` is the
object store, `objects` its rows, `replication` uploads and deletes, `retrieval` brings files back.
"""
