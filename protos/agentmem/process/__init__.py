"""What every service's process has, and the commands that start one.

Beginning and end: `service` (exit status, the service manager), `parent`, `settings`, `models`, `model_registry` and
`model_sources` (which models are registered), `cluster_tls`. Serving: `server` and `rpc` around every handler,
`sockets`, `wire`, `health` and `health_changes`, `shielding`. What it shows: `logs`, `exposition` and `grpc_metrics`,
`otlp` and `otlp_export`, and `checkup` for `agentmem doctor`.
"""
