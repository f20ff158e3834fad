"""The parts of every service's process.

Start and end: `service`, `parent`, `settings`, `models`, `model_registry`, `model_sources`, `cluster_tls`. Serving:
`server`, `rpc`, `sockets`, `wire`, `health`, `health_changes`, `shielding`. Diagnosis: `logs`, `exposition`,
`grpc_metrics`, `otlp`, `otlp_export`, `checkup`.
"""
