"""The parts of every service's process.

Start and end: `service`, `parent`, `settings`, `models`, `model_registry`. Serving: `server`, `rpc`, `sockets`, `wire`,
`health`. Diagnosis: `logs`, `exposition`, `grpc_metrics`, `otlp`, `checkup`.
"""
