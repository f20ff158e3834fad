"""Files of KV on the disk, and their rows, which are warm.db's.

`directory` says where files are, and shows a worker whether it shares that disk; `directory_lock` who has them, `disk`
how they are made durable and deleted. `warm_database` makes the tables of rows: `references` says which files are
published and which failed, `holding` whose they are, as the ledger has said.
`publication` is what a worker hands in, its verification, and files that come and go in pieces.
"""
