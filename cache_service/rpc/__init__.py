"""The RPCs: `cache_store` is CacheStoreService, `agents` the storage half of AgentService."""
