"""An agent's memory as worker and store share it.

`ledger` is the memory, `blockfile` the format and names of KV files, `bits` their quantization, `tiers` their place,
`hints` the order of eviction, `object_location` the object store.
"""
