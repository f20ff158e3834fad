"""The contract of Agentmem, and the little that both ends must share.

`agentmem.v1` holds the protos and their stubs. Beside it: agent keys, the error table, the interceptor that maps it,
channels, the server set-up, how calls end, tracing, spans, the format of KV files, conversations by content, which
models are registered, settings, logs, the metrics page with what every process has on it, what service managers are
told, and what `agentmem doctor` finds.
"""
