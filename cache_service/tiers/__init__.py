"""Which files of KV stay on the disk, and for how long.

`blocks` and `warm_rows` change files and rows, `warm` keeps the disk within `limits` and `quotas`. `remote` is the
object store, `objects` its rows, `replication` uploads, `retrieval` brings files back.
"""
