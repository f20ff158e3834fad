"""An agent's memory (`ledger`) and its files (`blockfile`, `bits`) as worker and store share them.

`tiers` is where files are, `hints` the order of eviction, `object_location` the object store.
"""
