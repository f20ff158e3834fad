"""The store's checks for `agentmem doctor`, `python -m cache_service.doctor` with the flags of `agentmem-store`.

They change neither the data directory nor its disk; a store may run on the directory meanwhile.
"""
