"""The RPCs: messages are checked and become values in `conversions` and `agent_conversions`, and back.

`cache_store` is CacheStoreService, `agents` the storage half of AgentService.
"""
