"""The parts of every service's process.

Start and end: `service`, `parent`, `settings`, `trial`, `cluster_tls`, `macos`, `open_files`. Models: `models`,
`model_registry`, `model_sources`, `model_folders`, `model_cache`. Serving: `server`, `rpc`, `sockets`, `wire`,
`health`, `health_changes`, `shielding`. Diagnosis: `logs`, `exposition`, `grpc_metrics`, `otlp`, `otlp_export`,
`checkup`.
"""
