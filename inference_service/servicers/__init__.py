"""The worker's gRPC rim."""
