"""Before any request: who calls (`callers`), their key (`key_ring` checks it; `keys`, `key_file`), its rights
(`authorization`) and limits (`admission`), and TLS.
"""
