"""Files of KV on the disk, and their rows.

`directory` says where files are, and shows a worker whether it shares that disk; `directory_lock` who has them, `disk`
how they are made durable and deleted. `references` are rows: which files are published, who refers to them, which
failed. `publication` is what a worker hands in, its verification, and files that come and go in pieces.
"""
