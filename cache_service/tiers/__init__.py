"""Files of KV on the disk, and for how long: `warm` keeps it within `limits` and `quotas`. `remote` is the object
store.
"""
