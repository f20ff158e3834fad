"""What worker and store share of an agent's memory, which the client does not know of.

`ledger` is the memory itself, `blockfile` the format and names of files with its KV, `bits` how finely it is quantized,
`tiers` where it is, `hints` what of it stays longest, `object_location` the object store.
"""
