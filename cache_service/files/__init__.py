"""Files of KV on the disk, and their rows in warm.db.

`directory` says where files are, `directory_lock` who has them, `disk` how they are made durable and deleted.
`warm_database` makes the tables: `references` has published files, `holding` whose they are, as the ledger says.
`publication` verifies what a worker hands in, and has files that come and go in pieces.
"""
